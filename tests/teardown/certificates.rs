//! Credentials that expire: the kubelet's, which only a running kubelet renews.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Result, ensure};
use testbed::{claims::Claim, control_plane::ControlPlane, wait::eventually};
use tokio::time::{Instant, sleep, sleep_until};

use crate::cases::{
    Scene, Shared, claims,
    pods::{POLITE, simple},
    scene::{AGENT, PATIENCE},
};

/// Lifetime of a certificate.
const VALID: Duration = Duration::from_secs(15);
/// The expiry of a certificate has whole seconds, and a server may check later.
const SURELY: Duration = Duration::from_secs(2);

pub fn cases() -> Vec<Claim<Shared<ControlPlane>>> {
    claims! {
        in certificates on ControlPlane;
        Own: [renewed_certificate_is_used_and_an_expired_one_loses_nothing],
    }
}

/// A kubelet's certificates, each in its own file, and the link to the current one.
struct Certificates<'a> {
    plane: &'a ControlPlane,
    node: &'a str,
    dir: PathBuf,
    many: usize,
}

impl Certificates<'_> {
    fn current(&self) -> PathBuf {
        self.dir.join("kubelet-client-current.pem")
    }

    /// Replaces the current certificate like a kubelet. Returns its expiry.
    fn renew(&mut self, valid: Duration) -> Result<Instant> {
        self.many += 1;
        let (file, link) = (self.dir.join(format!("{}.pem", self.many)), self.dir.join("new"));
        fs::write(&file, self.plane.node_certificate(self.node, valid)?)?;
        symlink(&file, &link)?;
        fs::rename(&link, self.current())?;
        Ok(Instant::now() + valid)
    }
}

async fn renewed_certificate_is_used_and_an_expired_one_loses_nothing(
    scene: &mut Scene,
    plane: &ControlPlane,
) -> Result<()> {
    let stage = Arc::clone(&scene.stage);
    let dir = stage.containerd.workspace().dir().join("pki");
    fs::create_dir(&dir)?;
    let mut certificates = Certificates {
        plane,
        node: &stage.node,
        dir,
        many: 0,
    };
    let [early, late] = ["early", "late"].map(|name| simple(name, 10, POLITE));
    let (early, late) = (scene.run(early).await?, scene.run(late).await?);
    let kubeconfig = certificates.dir.join("kubelet.conf");
    let text = plane.node_kubeconfig_with(&stage.node, &certificates.current());
    fs::write(&kubeconfig, text)?;
    // Last: pods take seconds to start.
    let first_ends = certificates.renew(VALID)?;
    let agent = stage.agent(Path::new(AGENT))?;
    let agent = agent.flag("--kubeconfig", &kubeconfig).start().await?;

    agent
        .during(async {
            let output = agent.ask(&["status"]).await?;
            ensure!(output.contains("the credentials expire"), "{output}");
            // It is renewed, and the agent's first one has expired.
            let second_ends = certificates.renew(first_ends - Instant::now() + VALID)?;
            sleep_until(first_ends + SURELY).await;
            scene.take_down(&early).await?;

            // The kubelet is dead, and does not renew it.
            sleep_until(second_ends + SURELY).await;
            scene.delete(&late, None).await?;
            let refused = async || Ok(agent.log().contains("401").then_some(()));
            eventually(PATIENCE, "an answer that the credentials are good no more", refused).await?;
            let output = agent.ask(&["status"]).await?;
            ensure!(output.contains("the credentials have expired"), "{output}");
            sleep(Duration::from_secs(3)).await;
            let object = scene.object(&late.identity.name).await?;
            ensure!(object["metadata"]["uid"] == late.uid(), "the object stays");

            // A user renews it.
            certificates.renew(Duration::from_secs(3600))?;
            scene.gone_and_clean(&late).await
        })
        .await?;
    let log = agent.log();
    ensure!(log.contains("Credentials reloaded"), "{log}");
    agent.stop().await
}
