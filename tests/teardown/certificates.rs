//! Credentials that end: the kubelet's, which are renewed as long as there is a kubelet to renew them.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Result, ensure};
use testbed::{control_plane::ControlPlane, stage::AgentProcess, wait::eventually};
use tokio::time::{Instant, sleep, sleep_until};

use crate::cases::{
    Case, Place, Scene,
    pods::{POLITE, simple},
    scene::{AGENT, PATIENCE},
};

/// How long a certificate is good.
const VALID: Duration = Duration::from_secs(15);
/// A certificate's end has no fractions of a second, and a server may look a moment later.
const SURELY: Duration = Duration::from_secs(2);

/// The claims.
pub fn cases() -> Vec<Case<ControlPlane>> {
    vec![Case {
        name: "certificates::renewed_certificate_is_used_and_an_expired_one_loses_nothing",
        place: Place::Own,
        check: |scene, plane| {
            Box::pin(renewed_certificate_is_used_and_an_expired_one_loses_nothing(
                scene, plane,
            ))
        },
    }]
}

/// A kubelet's certificates, each in a file of its own, and the link to the last.
struct Certificates<'a> {
    plane: &'a ControlPlane,
    node: &'a str,
    dir: PathBuf,
    many: usize,
}

// === impl Certificates ===

impl Certificates<'_> {
    fn current(&self) -> PathBuf {
        self.dir.join("kubelet-client-current.pem")
    }

    /// Another one takes the place of the last, as a kubelet does it. Tells when it ends.
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
    let first_ends = certificates.renew(VALID)?;
    let kubeconfig = certificates.dir.join("kubelet.conf");
    let text = plane.node_kubeconfig_with(&stage.node, &certificates.current());
    fs::write(&kubeconfig, text)?;
    let [early, late] = ["early", "late"].map(|name| simple(name, 10, POLITE));
    let (early, late) = (scene.run(early).await?, scene.run(late).await?);
    let agent = AgentProcess::start_as(&stage, Path::new(AGENT), &kubeconfig).await?;

    agent
        .during(async {
            let told = agent.ask(&["status"]).await?;
            ensure!(told.contains("the credentials expire"), "{told}");
            // It is renewed, and the one that the agent began with is good no more.
            let second_ends = certificates.renew(first_ends - Instant::now() + VALID)?;
            sleep_until(first_ends + SURELY).await;
            scene.take_down(&early).await?;

            // The kubelet is dead, and nobody renews it.
            sleep_until(second_ends + SURELY).await;
            scene.delete(&late, None).await?;
            let refused = async || Ok(agent.log().contains("401").then_some(()));
            eventually(PATIENCE, "an answer that the credentials are good no more", refused).await?;
            let told = agent.ask(&["status"]).await?;
            ensure!(told.contains("the credentials have expired"), "{told}");
            sleep(Duration::from_secs(3)).await;
            let object = scene.object(&late.identity.name).await?;
            ensure!(object["metadata"]["uid"] == late.uid(), "the object stays");

            // Somebody brings a new one.
            certificates.renew(Duration::from_secs(3600))?;
            scene.gone_and_clean(&late).await
        })
        .await?;
    let log = agent.log();
    ensure!(log.contains("Credentials have been read again"), "{log}");
    ensure!(agent.stop().await? == Some(0));
    Ok(())
}
