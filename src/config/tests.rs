use clap::Parser as _;

use super::{kubelet::KUBELET_CONFIG_VERSION, *};
use crate::{
    api::kubeconfig::{credential_files, read_kubeconfig},
    cli::{Cli, Verb},
    model::problem::ProblemKind,
    node::{kubelet_process::flags::KubeletFlags, unmounts::ForceUnmount},
};

pub(super) fn flags(args: &[&str]) -> NodeFlags {
    let all = ["pod-teardown", "run"].iter().chain(args);
    match Cli::try_parse_from(all).unwrap().verb {
        Verb::Run(flags) => flags,
        other => panic!("not run: {other:?}"),
    }
}

#[test]
fn forced_unmount_is_off_by_default() {
    assert_eq!(flags(&[]).force_unmount, ForceUnmount::Never);
    let changed = flags(&["--force-unmount", "dead-server"]);
    assert_eq!(changed.force_unmount, ForceUnmount::DeadServer);
}

#[test]
fn credential_files_are_the_kubeconfig_and_the_files_that_it_names() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("kubeconfig");
    let text = "{kind: Config, clusters: [{name: c, cluster: {server: 'https://x', certificate-authority: ca.crt}}], \
                users: [{name: u, user: {client-certificate: /pki/c.pem, client-key: /pki/k.pem, tokenFile: token}}]}";
    std::fs::write(&file, text).unwrap();
    let near = |name: &str| dir.path().join(name);
    let expected = [
        near("kubeconfig"),
        near("ca.crt"),
        "/pki/c.pem".into(),
        "/pki/k.pem".into(),
        near("token"),
    ];
    assert_eq!(credential_files(&file), expected);
}

#[test]
fn kubelet_configuration_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.yaml");
    std::fs::write(&file, "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncgroupRoot: /kubelet\npodLogsDir: /logs\nextra: {a: 1}\n").unwrap();
    let config = kubelet_configuration(Some(&file), None).unwrap();
    assert_eq!(cgroup_root(None, Some(&config)).unwrap(), "/kubelet");
    assert_eq!(
        cgroup_root(Some("/mine"), Some(&config)).unwrap(),
        "/mine",
        "a flag counts more"
    );
    assert_eq!(config.pod_logs_dir.as_deref(), Some(Path::new("/logs")));
}

#[test]
fn drop_ins_are_merged_like_in_the_kubelet() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(
            path,
            format!("apiVersion: {KUBELET_CONFIG_VERSION}\nkind: KubeletConfiguration\n{text}"),
        )
        .unwrap();
    };
    let (file, drop_ins) = (dir.path().join("config"), dir.path().join("config.d"));
    write("config", "cgroupRoot: /base\npodLogsDir: /base\nhealthzPort: 1\n");
    // Sorted by name, with subdirectories; only *.conf.
    write("config.d/20-last.conf", "healthzPort: 4\n");
    write(
        "config.d/10-dir/99.conf",
        "healthzPort: 3\ncontainerRuntimeEndpoint: /run/x.sock\n",
    );
    write(
        "config.d/05-first.conf",
        "healthzPort: 2\ncgroupRoot: null\nhealthzBindAddress: 127.0.0.2\n",
    );
    write("config.d/30-other.yaml", "healthzPort: 5\n");
    let read = || kubelet_configuration(Some(&file), Some(&drop_ins));
    let config = read().unwrap();
    assert_eq!(config.healthz(), Some(([127, 0, 0, 2], 4).into()));
    assert_eq!(config.cgroup_root, None, "null removes it");
    assert_eq!(config.pod_logs_dir.as_deref(), Some(Path::new("/base")));
    assert_eq!(config.container_runtime_endpoint.as_deref(), Some("/run/x.sock"));
    let alone = kubelet_configuration(None, Some(&drop_ins)).unwrap();
    assert_eq!(alone.pod_logs_dir, None);
    // The kubelet's flags override it.
    let start = KubeletFlags {
        healthz_port: Some(7),
        ..KubeletFlags::default()
    };
    let config = config.with_flags(&start);
    assert_eq!(config.healthz(), Some(([127, 0, 0, 2], 7).into()));

    for text in ["", "kind: Pod\n"] {
        std::fs::write(drop_ins.join("40-wrong.conf"), text).unwrap();
        let problem = read().unwrap_err();
        assert!(
            problem.what.contains("40-wrong.conf") && problem.remedy.contains("--config-dir"),
            "{problem}"
        );
    }
    let problem = kubelet_configuration(None, Some(Path::new("/no/such/dir"))).unwrap_err();
    assert_eq!(problem.kind, ProblemKind::Absent);
    // The kubelet does not follow a symlink to the directory.
    std::os::unix::fs::symlink(&drop_ins, dir.path().join("link")).unwrap();
    let config = kubelet_configuration(None, Some(&dir.path().join("link"))).unwrap();
    assert_eq!(config.healthz(), kubelet_configuration(None, None).unwrap().healthz());
}

#[test]
fn runtime_endpoint_comes_from_the_kubelet_configuration_unless_a_flag_is_given() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config");
    let text = format!(
        "apiVersion: {KUBELET_CONFIG_VERSION}\nkind: KubeletConfiguration\ncontainerRuntimeEndpoint: unix:///run/x.sock\n"
    );
    std::fs::write(&file, text).unwrap();
    let config = kubelet_configuration(Some(&file), None).unwrap();
    assert_eq!(runtime_of(&flags(&[]), Some(&config)), "unix:///run/x.sock");
    assert_eq!(
        runtime_of(&flags(&["--cri-endpoint", "unix:///mine"]), Some(&config)),
        "unix:///mine"
    );
    assert_eq!(runtime_of(&flags(&[]), None), DEFAULT_RUNTIME);
}

#[test]
fn only_a_kubelet_configuration_is_accepted_and_empty_values_are_defaults() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.yaml");
    let read = |text: &str| {
        std::fs::write(&file, text).unwrap();
        kubelet_configuration(Some(&file), None).map_err(|problem| problem.to_string())
    };
    let head = format!("apiVersion: {KUBELET_CONFIG_VERSION}\nkind: KubeletConfiguration\n");
    let empty = read(&format!("{head}cgroupRoot: ''\npodLogsDir: ''\n")).unwrap();
    assert_eq!((empty.cgroup_root, empty.pod_logs_dir), (None, None));
    for (text, why) in [
        ("", "this file has no kind"),
        ("foo: bar\n", "this file has no kind"),
        (
            "apiVersion: v1\nkind: Pod\n",
            "this file is a Pod (v1), not a KubeletConfiguration",
        ),
        (
            "apiVersion: kubelet.config.k8s.io/v9\nkind: KubeletConfiguration\n",
            "v9",
        ),
        (&format!("{head}cgroupRoot: ../../x\n"), "cgroupRoot ../../x"),
    ] {
        let error = read(text).unwrap_err();
        assert!(
            error.contains("--kubelet-config") && error.contains(why),
            "{text:?}: {error}"
        );
    }
}

#[tokio::test]
async fn server_must_be_a_url_with_scheme_and_host() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("kubeconfig");
    let read = async |server: &str| {
        let text = format!(
            "{{apiVersion: v1, kind: Config, current-context: c, clusters: [{{name: c, cluster: {{server: \"{server}\"}}}}], \
             contexts: [{{name: c, context: {{cluster: c, user: c}}}}], users: [{{name: c, user: {{}}}}]}}"
        );
        std::fs::write(&file, text).unwrap();
        read_kubeconfig(&file).await.map(drop)
    };
    for wrong in ["127.0.0.1:18080", "ftp://x", "localhost", "/x"] {
        let error = read(wrong).await.unwrap_err().to_string();
        assert!(
            error.contains(wrong) && error.contains("must be https://host:port"),
            "{error}"
        );
    }
    let error = read("https://10.0.0.1:6443\", proxy-url: \"http://10.0.0.2:3128").await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("names a proxy-url"), "{error}");
    for right in ["https://10.0.0.1:6443", "https://[::1]:6443/prefix", "http://localhost"] {
        assert_eq!(read(right).await, Ok(()), "{right}");
    }
}
