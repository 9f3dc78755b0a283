//! Requests to stop a pod, by a user of this node: the pod that is meant, or why it is rejected. Pure.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::model::{
    pod::{PodUid, PodView},
    termination::Eviction,
};

/// A request to stop a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodStop {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// UID of the pod, if the user gives it.
    pub uid: Option<String>,
    /// Grace period in seconds. For a terminating pod it only shortens.
    pub grace: Option<i64>,
    /// The eviction, if it is one.
    pub eviction: Option<Eviction>,
}

/// Result of an accepted request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct StopAccepted {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
    /// The grace period in force, in seconds.
    pub grace_period_seconds: u64,
    /// Nothing of the pod ran any more: the request changes nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub already_terminated: bool,
    /// Why a restart would lose the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_durable: Option<String>,
    /// The terminal phase in the API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// The reason in the API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Why a request is rejected. The first text is namespace and name of the pod.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StopRejected {
    /// No such pod.
    #[error("no pod {0} is known on this node")]
    Unknown(String),
    /// Another pod, with this UID, has the name.
    #[error("{0} has UID {1}, which is not the requested UID")]
    OtherUid(String, PodUid),
    /// More than one pod has the name, with these UIDs, for example while absence proves nothing.
    #[error("more than one pod is known as {0}, with the UIDs {1}: name one of them with --uid")]
    Several(String, String),
    /// It is the mirror pod of a static pod.
    #[error(
        "{0} is the mirror of a static pod: take its manifest off the node instead; a kubelet would only start it again"
    )]
    Mirror(String),
    /// The gate blocks, for this reason.
    #[error("{0} is left alone: {1}")]
    Blocked(String, String),
    /// The agent stops, and begins no termination.
    #[error("the termination of {0} is not started: the agent is stopping; repeat the command once it runs again")]
    Stopping(String),
}

// === impl StopAccepted ===

impl StopAccepted {
    /// Namespace and name.
    pub fn pod(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

// === impl PodStop ===

impl PodStop {
    /// The pod that is meant, among all pods with an object. After this, its UID counts.
    pub fn resolve<'a>(&self, pods: impl Iterator<Item = &'a PodView>) -> Result<&'a PodView, StopRejected> {
        let named = pods.filter(|view| *view.pod.namespace == self.namespace && *view.pod.name == self.name);
        // While absence proves nothing, a pod and the one recreated under its name may both be known.
        let (meant, others): (Vec<_>, Vec<_>) =
            named.partition(|view| self.uid.as_deref().is_none_or(|uid| uid == view.pod.uid.as_str()));
        let view = match (&meant[..], &others[..]) {
            ([view], _) => *view,
            ([], []) => return Err(StopRejected::Unknown(self.pod())),
            ([], [other, ..]) => return Err(StopRejected::OtherUid(self.pod(), other.pod.uid.clone())),
            (several, _) => {
                let mut uids: Vec<_> = several.iter().map(|view| view.pod.uid.to_string()).collect();
                uids.sort_unstable();
                return Err(StopRejected::Several(self.pod(), uids.join(", ")));
            }
        };
        if view.mirror {
            return Err(StopRejected::Mirror(self.pod()));
        }
        Ok(view)
    }

    /// The rejection while the gate blocks. If only a kubelet blocks, it names the remedy: delete the pod with kubectl.
    pub fn rejected(&self, why: String, by_a_kubelet: bool) -> StopRejected {
        let why = if by_a_kubelet {
            let (namespace, name) = (&self.namespace, &self.name);
            format!("{why}; the kubelet does it: kubectl delete pod -n {namespace} {name}")
        } else {
            why
        };
        StopRejected::Blocked(self.pod(), why)
    }

    /// Namespace and name.
    pub fn pod(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::pod::PodRef;

    fn view(name: &str, uid: &str, mirror: bool) -> PodView {
        PodView {
            mirror,
            ..PodView::identity_only(PodRef {
                uid: uid.into(),
                namespace: "ns".into(),
                name: name.into(),
            })
        }
    }

    fn stop(name: &str, uid: Option<&str>) -> PodStop {
        PodStop {
            namespace: "ns".to_owned(),
            name: name.to_owned(),
            uid: uid.map(ToOwned::to_owned),
            grace: None,
            eviction: None,
        }
    }

    #[test]
    fn name_resolves_to_one_uid_or_an_error() {
        let pods = [view("a", "1", false), view("static", "2", true)];
        let resolve = |name, uid| stop(name, uid).resolve(pods.iter()).map(|view| view.pod.uid.clone());
        assert_eq!(resolve("a", None), Ok("1".into()));
        assert_eq!(resolve("a", Some("1")), Ok("1".into()));
        assert!(matches!(resolve("a", Some("9")), Err(StopRejected::OtherUid(..))));
        assert!(matches!(resolve("static", None), Err(StopRejected::Mirror(_))));
        assert!(matches!(resolve("b", None), Err(StopRejected::Unknown(_))));
        let pods = [view("a", "1", false), view("a", "3", false)];
        let resolve = |uid| stop("a", uid).resolve(pods.iter()).map(|view| view.pod.uid.clone());
        assert_eq!(resolve(Some("1")), Ok("1".into()));
        assert_eq!(resolve(Some("3")), Ok("3".into()));
        assert!(matches!(resolve(None), Err(StopRejected::Several(_, uids)) if uids == "1, 3"));
    }
}
