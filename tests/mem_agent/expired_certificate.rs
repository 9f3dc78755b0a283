//! A kubelet whose client certificate expires while it runs: it lives, and renews nothing. Its pods stay its own.

use std::fs;

use pod_teardown::{
    explanation::Explanation,
    ops::{admin::why::request_path, client},
};
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use testbed::apiserver::faults::Fault;
use tokio::time::sleep;

use crate::{
    node::{secs, wait_until},
    server::inject_fault,
    standby::NodeWithKubelet,
};

/// The certificate in the kubelet's kubeconfig has expired.
fn expire_certificate(stage: &NodeWithKubelet) {
    let key = KeyPair::generate().unwrap();
    let mut certificate = CertificateParams::new(Vec::new()).unwrap();
    certificate.not_after = date_time_ymd(2020, 5, 6);
    let (pem, kubeconfig) = (stage.node.path("client.pem"), stage.node.path("kubeconfig"));
    fs::write(&pem, certificate.self_signed(&key).unwrap().pem()).unwrap();
    let key_file = stage.node.path("client.key");
    fs::write(&key_file, key.serialize_pem()).unwrap();
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{server: 'https://127.0.0.1:1'}}}}]\n\
         contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
         users: [{{name: u, user: {{client-certificate: {}, client-key: {}}}}}]\n",
        pem.display(),
        key_file.display()
    );
    fs::write(kubeconfig, text).unwrap();
}

#[tokio::test(start_paused = true)]
async fn agent_stays_on_standby_and_names_the_expiry() {
    // The API server may refuse the agent, too.
    for is_refused in [false, true] {
        let mut stage = NodeWithKubelet::new().await;
        stage.kubelet_works().await;
        stage.node.delete("web", None).await;
        let message = async |stage: &NodeWithKubelet| stage.node.status().await.role.unwrap().message.unwrap();
        assert_eq!(message(&stage).await, "the kubelet works");
        expire_certificate(&stage);
        sleep(secs(6)).await;
        assert_eq!(
            message(&stage).await,
            "the kubelet works",
            "it has just renewed its Lease"
        );
        if is_refused {
            inject_fault(&stage.node, Fault::status(401));
        }
        wait_until("the expiry is named", async || {
            message(&stage).await.contains("has expired (2020-05-06T00:00:00Z)")
        })
        .await;
        assert_eq!(stage.role().await, "kubelet-alive");
        stage.assert_untouched();
        if is_refused {
            sleep(secs(600)).await;
            assert_eq!(stage.role().await, "kubelet-alive");
            stage.assert_untouched();
            stage.node.api.faults().clear();
            continue;
        }
        let path = request_path("default/web");
        let why: Explanation = client::get(&stage.node.flags.socket.socket, &path).await.unwrap();
        assert!(
            why.text()
                .contains("its client certificate has expired (2020-05-06T00:00:00Z)"),
            "{}",
            why.text()
        );
    }
}
