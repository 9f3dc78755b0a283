//! A kubelet whose client certificate expires while it runs: it lives, and renews nothing. Its pods stay its own.

use rcgen::{CertificateParams, KeyPair, date_time_ymd};

use crate::prelude::*;

/// The certificate in the kubelet's kubeconfig has expired.
fn expire_certificate(node: &NodeWithKubelet) {
    let key = KeyPair::generate().unwrap();
    let mut certificate = CertificateParams::new(Vec::new()).unwrap();
    certificate.not_after = date_time_ymd(2020, 5, 6);
    let (pem, kubeconfig) = (node.path("client.pem"), node.path("kubeconfig"));
    fs::write(&pem, certificate.self_signed(&key).unwrap().pem()).unwrap();
    let key_file = node.path("client.key");
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
        let mut node = NodeWithKubelet::new().await;
        node.kubelet_works().await;
        node.delete("web", None).await;
        let message = async |node: &NodeWithKubelet| node.status().await.role.unwrap().message.unwrap();
        assert_eq!(message(&node).await, "the kubelet works");
        expire_certificate(&node);
        sleep(secs(6)).await;
        assert_eq!(
            message(&node).await,
            "the kubelet works",
            "it has just renewed its Lease"
        );
        if is_refused {
            inject_fault(&node, Fault::status(401));
        }
        wait_until!(message(&node).await.contains("has expired (2020-05-06T00:00:00Z)"));
        assert_eq!(node.role().await, "kubelet-alive");
        node.assert_untouched();
        if is_refused {
            sleep(secs(600)).await;
            assert_eq!(node.role().await, "kubelet-alive");
            node.assert_untouched();
            node.api.faults().clear();
            continue;
        }
        let why = node.why("web").await;
        assert_has(&why, &["its client certificate has expired (2020-05-06T00:00:00Z)"]);
    }
}
