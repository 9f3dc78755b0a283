//! Runtime-specific JSON in verbose CRI answers. JSON that cannot be parsed counts as missing.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::PathBuf;

use k8s_cri::v1;
use serde::Deserialize;

/// Key of the JSON, used by containerd and CRI-O.
const INFO: &str = "info";

/// Key of containerd's configuration.
const CONFIG: &str = "config";

/// CRI-O's annotation for what containerd keeps in the sandbox's configuration.
const CRIO_CGROUP_PARENT: &str = "io.kubernetes.cri-o.CgroupParent";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Info<'a> {
    #[serde(borrow)]
    config: Option<Config<'a>>,
    #[serde(borrow)]
    runtime_spec: Option<Spec<'a>>,
}

/// The process in the JSON of a container or sandbox.
#[derive(Deserialize)]
struct Process {
    pid: Option<i64>,
}

/// The sandbox's configuration, as containerd repeats it.
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

/// The OCI specification of the sandbox.
#[derive(Deserialize)]
struct Spec<'a> {
    #[serde(borrow)]
    annotations: Option<HashMap<Cow<'a, str>, Cow<'a, str>>>,
}

/// The parent cgroup of the sandbox.
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

/// containerd's configuration.
#[derive(Deserialize)]
struct Runtime {
    cni: Cni,
}

/// containerd 1 has one directory of plugins, containerd 2 a list.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Cni {
    conf_dir: PathBuf,
    #[serde(default)]
    bin_dir: PathBuf,
    #[serde(default)]
    bin_dirs: Vec<PathBuf>,
}

/// Directories of the network plugins and their configuration, if reported.
pub(super) fn network_directories(answer: &v1::StatusResponse) -> Option<Vec<PathBuf>> {
    let Runtime { cni } = serde_json::from_str(answer.info.get(CONFIG)?).ok()?;
    let all = [cni.conf_dir, cni.bin_dir].into_iter().chain(cni.bin_dirs);
    let mut all: Vec<_> = all.filter(|path| path.is_absolute()).collect();
    all.dedup();
    Some(all)
}

/// PID of the first process of a container or sandbox, if reported.
pub(super) fn process(info: &HashMap<String, String>) -> Option<i32> {
    let process: Process = serde_json::from_str(info.get(INFO)?).ok()?;
    // No container is PID 1 of the node.
    process
        .pid
        .and_then(|pid| i32::try_from(pid).ok())
        .filter(|pid| *pid > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pid_is_read_if_present() {
        for (info, pid) in [
            (r#"{"sandboxID":"s","pid":4242,"removing":false}"#, Some(4242)),
            (r#"{"pid":0}"#, None),
            (r#"{"pid":1}"#, None),
            (r#"{"pid":-7}"#, None),
            (r#"{"pid":99999999999}"#, None),
            (r#"{"sandboxID":"s"}"#, None),
            ("", None),
        ] {
            assert_eq!(process(&[(INFO.to_owned(), info.to_owned())].into()), pid);
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
    fn cgroup_parent_is_read_from_containerd_and_crio() {
        let containerd = r#"{"pid":7,"config":{"metadata":{},"linux":{"cgroup_parent":"/kubepods/pod1"}}}"#;
        assert_eq!(parent(containerd).as_deref(), Some("/kubepods/pod1"));
        let crio =
            r#"{"pid":7,"runtimeSpec":{"annotations":{"a":"b","io.kubernetes.cri-o.CgroupParent":"kube\u002d1"}}}"#;
        assert_eq!(parent(crio).as_deref(), Some("kube-1"));
    }

    #[test]
    fn directories_of_the_network_are_read_from_both_containerds() {
        let directories = |config: &str| {
            let info = [(CONFIG.to_owned(), config.to_owned())].into();
            network_directories(&v1::StatusResponse {
                info,
                ..Default::default()
            })
        };
        let both = Some(vec!["/etc/cni/net.d".into(), "/opt/cni/bin".into()]);
        let one = r#"{"containerd":{},"cni":{"binDir":"/opt/cni/bin","confDir":"/etc/cni/net.d"}}"#;
        assert_eq!(directories(one), both);
        let two = r#"{"cni":{"binDir":"","binDirs":["/opt/cni/bin"],"confDir":"/etc/cni/net.d"}}"#;
        assert_eq!(directories(two), both);
        assert_eq!(directories("{}"), None);
        assert_eq!(directories("[cni]"), None);
    }

    #[test]
    fn unrelated_json_is_no_error() {
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
