//! Pods that serve the whole node, such as the daemon of the network plugin. The runtime needs it to remove the network of other
//! pods (CNI DEL), and without a kubelet it is not restarted. So they terminate last. Pure.

use std::path::Path;

use crate::model::pod::PodView;

/// Name of a directory in all paths that CNI plugins share with the host: `/etc/cni/net.d`, `/opt/cni/bin`.
const CNI: &str = "cni";

/// Whether other pods of the node may need this one until they are deleted. It has host network, so it needs no network plugin
/// itself. It is critical to its node, or shares a CNI directory with the host: not every network plugin has a priority class. A
/// pod with a volume or device of a driver does not wait: the driver waits for it, and may need the network.
pub fn is_node_service(view: &PodView) -> bool {
    let shares_cni = || view.host_paths.iter().any(|path| is_of_cni(Path::new(&**path)));
    let needs_driver = view.attachable_volumes || view.dynamic_resources;
    view.host_network && !needs_driver && (view.node_critical || shares_cni())
}

fn is_of_cni(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == CNI)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::model::pod::PodObject;

    fn is_one(spec: &Value) -> bool {
        let pod = json!({ "metadata": { "name": "p", "namespace": "ns", "uid": "u" }, "spec": spec });
        is_node_service(&PodView::project(PodObject::from_value(&pod).unwrap(), false))
    }

    #[test]
    fn node_service_has_host_network_and_is_node_critical_or_shares_a_cni_directory() {
        let critical = json!({ "containers": [], "hostNetwork": true, "priorityClassName": "system-node-critical" });
        let sharing = |path: &str| {
            let volumes = json!([{ "name": "v", "hostPath": { "path": path } }]);
            json!({ "containers": [], "hostNetwork": true, "volumes": volumes })
        };
        for (mut spec, expected) in [
            (critical.clone(), true),
            (
                json!({ "containers": [], "hostNetwork": true, "priority": 2_000_001_000 }),
                true,
            ),
            (
                json!({ "containers": [], "hostNetwork": true, "priority": 2_000_000_000 }),
                false,
            ),
            (
                json!({ "containers": [], "hostNetwork": true, "priorityClassName": "system-cluster-critical" }),
                false,
            ),
            (sharing("/etc/cni/net.d"), true),
            (sharing("/opt/cni/bin"), true),
            (sharing("/var/lib/rancher/k3s/agent/etc/cni/net.d"), true),
            (sharing("/var/lib/cnidata"), false),
            (sharing("/"), false),
        ] {
            assert_eq!(is_one(&spec), expected, "{spec}");
            spec["hostNetwork"] = json!(false);
            assert!(
                !is_one(&spec),
                "one with a network of its own needs the plugin itself: {spec}"
            );
        }
        let mut claiming = critical;
        claiming["volumes"] = json!([{ "name": "v", "persistentVolumeClaim": { "claimName": "c" } }]);
        assert!(!is_one(&claiming), "its driver waits for it");
    }
}
