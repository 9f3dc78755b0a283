//! What runtimes tell beyond the CRI, in JSON texts of their own. One that cannot be read is as good as none.

use std::borrow::Cow;
use std::collections::HashMap;

use k8s_cri::v1;
use serde::Deserialize;

/// Under this key both runtimes put their text.
const INFO: &str = "info";

/// Where CRI-O notes what containerd keeps in the sandbox's configuration.
const CRIO_CGROUP_PARENT: &str = "io.kubernetes.cri-o.CgroupParent";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Info<'a> {
    #[serde(borrow)]
    config: Option<Config<'a>>,
    #[serde(borrow)]
    runtime_spec: Option<Spec<'a>>,
}

/// The process that a runtime names.
#[derive(Deserialize)]
struct Process {
    pid: Option<i64>,
}

/// The configuration that the sandbox was made with, as containerd repeats it.
#[derive(Deserialize)]
struct Config<'a> {
    #[serde(borrow)]
    linux: Option<Linux<'a>>,
}

#[derive(Deserialize)]
struct Linux<'a> {
    #[serde(borrow)]
    cgroup_parent: Option<Cow<'a, str>>,
}

/// The OCI specification of the sandbox's container.
#[derive(Deserialize)]
struct Spec<'a> {
    #[serde(borrow)]
    annotations: Option<HashMap<Cow<'a, str>, Cow<'a, str>>>,
}

/// The cgroup that the sandbox was put under.
pub(super) fn cgroup_parent(answer: &v1::PodSandboxStatusResponse) -> Option<String> {
    let info: Info<'_> = serde_json::from_str(answer.info.get(INFO)?).ok()?;
    let of_containerd = info.config.and_then(|config| config.linux?.cgroup_parent);
    let of_crio = || {
        info.runtime_spec
            .and_then(|spec| spec.annotations?.remove(CRIO_CGROUP_PARENT))
    };
    of_containerd
        .filter(|parent| !parent.is_empty())
        .or_else(of_crio)
        .map(Cow::into_owned)
}

/// The first process of a container; none where the runtime names none.
pub(super) fn process(answer: &v1::ContainerStatusResponse) -> Option<i32> {
    let process: Process = serde_json::from_str(answer.info.get(INFO)?).ok()?;
    // Nobody's container is PID 1 of the node.
    process
        .pid
        .and_then(|pid| i32::try_from(pid).ok())
        .filter(|pid| *pid > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_named_or_not() {
        for (info, pid) in [
            (r#"{"sandboxID":"s","pid":4242,"removing":false}"#, Some(4242)),
            (r#"{"pid":0}"#, None),
            (r#"{"pid":1}"#, None),
            (r#"{"pid":-7}"#, None),
            (r#"{"pid":99999999999}"#, None),
            (r#"{"sandboxID":"s"}"#, None),
            ("", None),
        ] {
            let info = [(INFO.to_owned(), info.to_owned())].into();
            let answer = v1::ContainerStatusResponse {
                info,
                ..Default::default()
            };
            assert_eq!(process(&answer), pid);
        }
    }

    fn parent(info: &str) -> Option<String> {
        let info = [(INFO.to_owned(), info.to_owned())].into();
        cgroup_parent(&v1::PodSandboxStatusResponse {
            info,
            ..Default::default()
        })
    }

    #[test]
    fn containerd_and_crio_name_the_cgroup_parent_in_their_own_places() {
        let containerd = r#"{"pid":7,"config":{"metadata":{},"linux":{"cgroup_parent":"/kubepods/pod1"}}}"#;
        assert_eq!(parent(containerd).as_deref(), Some("/kubepods/pod1"));
        let crio =
            r#"{"pid":7,"runtimeSpec":{"annotations":{"a":"b","io.kubernetes.cri-o.CgroupParent":"kube\u002d1"}}}"#;
        assert_eq!(parent(crio).as_deref(), Some("kube-1"));
    }

    #[test]
    fn a_text_that_says_nothing_of_it_is_no_error() {
        for info in [
            "",
            "[]",
            "{}",
            r#"{"config":null}"#,
            r#"{"config":{"linux":{"cgroup_parent":""}}}"#,
        ] {
            assert_eq!(parent(info), None, "{info}");
        }
        assert_eq!(cgroup_parent(&v1::PodSandboxStatusResponse::default()), None);
    }
}
