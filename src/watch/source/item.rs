//! What is read of one item of a list before it counts as a pod.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::model::pod::PodObject;

/// Rejects a pod of another node, in case a proxy drops the field selector.
pub(super) fn check_node(node: &str, object: PodObject) -> Result<PodObject, String> {
    let spec = object.pod.spec.as_ref();
    match spec.and_then(|spec| spec.node_name.as_deref()) {
        Some(name) if name == node => Ok(object),
        other => Err(format!(
            "it is bound to node {}, and was not asked for",
            other.unwrap_or("none")
        )),
    }
}

/// Metadata that identifies an otherwise unreadable object.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Metadata {
    #[serde(default)]
    pub uid: String,
    #[serde(default)]
    pub namespace: String,
    #[serde(default)]
    pub name: String,
    #[serde(default, rename = "resourceVersion")]
    pub version: String,
}

// === impl Metadata ===

impl Metadata {
    /// Unreadable fields are empty.
    pub fn read(item: &RawValue) -> Self {
        #[derive(Deserialize)]
        struct Object {
            #[serde(default)]
            metadata: Metadata,
        }
        serde_json::from_str::<Object>(item.get())
            .map(|object| object.metadata)
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pod_of_another_node_is_rejected() {
        let pod = |spec| {
            let metadata = json!({ "name": "a", "namespace": "ns", "uid": "1" });
            PodObject::from_value(&json!({ "metadata": metadata, "spec": spec })).unwrap()
        };
        assert!(check_node("n1", pod(json!({ "containers": [], "nodeName": "n1" }))).is_ok());
        let other = check_node("n1", pod(json!({ "containers": [], "nodeName": "n2" })));
        assert!(other.unwrap_err().contains("bound to node n2"));
        assert!(check_node("n1", pod(json!({ "containers": [] }))).is_err());
    }
}
