use super::*;
use crate::apiserver::kinds;
use crate::apiserver::route::{self, Route};
use serde_json::json;

fn store() -> Store {
    let mut store = Store::new(1, 10);
    let pods = kinds::find("", "v1", "pods").unwrap();
    for (name, node) in [("mine", "x"), ("other", "y")] {
        let claims = json!([{ "name": "gpu", "resourceClaimName": format!("gpu-of-{name}") }]);
        let pod = json!({
            "metadata": { "name": name, "namespace": "ns" },
            "spec": { "nodeName": node, "resourceClaims": claims },
            "status": { "resourceClaimStatuses": [{ "name": "nic", "resourceClaimName": format!("nic-of-{name}") }] },
        });
        store.put(pods, &pods.key("ns", name), pod);
    }
    store
}

fn ask(verb: &str, path: &str, fields: &str) -> Result<(), ApiError> {
    let store = store();
    let Ok(Route::Objects(target)) = route::parse(&store.served, path) else {
        panic!("{path}")
    };
    let fields = Selector::parse(target.kind, fields).unwrap();
    authorize(&store, &User::Node("x".to_owned()), verb, &target, &fields)
}

#[test]
fn a_node_does_what_a_kubelet_does_and_no_more() {
    for (verb, path, fields, allowed) in [
        ("get", "/api/v1/namespaces/ns/pods/mine", "", true),
        ("get", "/api/v1/namespaces/ns/pods/other", "", false),
        ("get", "/api/v1/namespaces/ns/pods/gone", "", false),
        ("get", "/api/v1/namespaces/ns/pods/mine/status", "", false),
        ("list", "/api/v1/pods", "spec.nodeName=x", true),
        ("watch", "/api/v1/pods", "spec.nodeName=x,metadata.name=other", true),
        ("list", "/api/v1/pods", "", false),
        ("list", "/api/v1/pods", "spec.nodeName=y", false),
        ("list", "/api/v1/namespaces/ns/pods", "metadata.name=mine", true),
        ("delete", "/api/v1/namespaces/ns/pods/gone", "", true),
        ("deletecollection", "/api/v1/namespaces/ns/pods", "", false),
        ("patch", "/api/v1/namespaces/ns/pods/mine", "", false),
        ("patch", "/api/v1/namespaces/ns/pods/mine/status", "", true),
        ("create", "/api/v1/namespaces/ns/events", "", true),
        ("get", "/api/v1/namespaces/ns/events/e", "", false),
        (
            "get",
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/x",
            "",
            true,
        ),
        (
            "get",
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/y",
            "",
            false,
        ),
        ("get", "/apis/coordination.k8s.io/v1/namespaces/ns/leases/x", "", false),
        (
            "list",
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases",
            "metadata.name=x",
            false,
        ),
        ("get", "/api/v1/nodes/x", "", true),
        ("get", "/api/v1/nodes/y", "", false),
        ("list", "/api/v1/nodes", "metadata.name=x", true),
        ("delete", "/api/v1/nodes/x", "", false),
        ("get", "/api/v1/namespaces/ns/configmaps/of-mine", "", false),
        (
            "get",
            "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/gpu-of-mine",
            "",
            true,
        ),
        (
            "get",
            "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/nic-of-mine",
            "",
            true,
        ),
        (
            "get",
            "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/gpu-of-other",
            "",
            false,
        ),
        (
            "list",
            "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims",
            "",
            false,
        ),
        ("list", "/api/v1/namespaces", "", false),
    ] {
        assert_eq!(ask(verb, path, fields).is_ok(), allowed, "{verb} {path}?{fields}");
    }
}

#[test]
fn a_refusal_says_who_what_where_and_why() {
    let error = ask("get", "/api/v1/namespaces/ns/pods/gone", "").unwrap_err();
    assert_eq!((error.code, error.reason), (403, "Forbidden"));
    assert_eq!(
        error.message,
        "pods \"gone\" is forbidden: User \"system:node:x\" cannot get resource \"pods\" in API group \"\" in the \
         namespace \"ns\": no relationship found between node 'x' and this object"
    );
}
