//! `check`: its rows and exit codes.

use std::{
    io::{BufRead as _, BufReader},
    process::Stdio,
};

use pod_teardown::{
    journal::{FILE, Journal},
    node::identity::Identity,
};
use testbed::{
    apiserver::{Config, MemApiServer, faults::Fault},
    scripted_cri::{ScriptedCri, World},
};
use tokio::task::spawn_blocking;

use crate::command::{CommandOutput, Flags, NODE, output_of};

async fn api() -> MemApiServer {
    let nodes = vec![NODE.to_owned()];
    let config = Config {
        nodes,
        ..Config::default()
    };
    MemApiServer::start(config).await.unwrap()
}

/// Runs `check`. Asserts that each failure and warning has a remedy, and that the exit code matches.
async fn check(flags: Flags) -> CommandOutput {
    let output = spawn_blocking(move || flags.run("check")).await.unwrap();
    let lines: Vec<&str> = output.out.lines().collect();
    for (index, line) in lines.iter().enumerate() {
        if line.starts_with("  FAIL  ") || line.starts_with("  WARN  ") {
            let below = |nth: usize, prefix| lines.get(index + nth)?.trim_start().strip_prefix(prefix);
            let remedy = below(1, "→ ");
            assert!(
                remedy.is_some_and(|remedy: &str| remedy.split(' ').count() > 3),
                "{line}: {output:?}"
            );
            assert!(
                below(2, "see: ").is_some_and(|see| see.contains("runbook.md#check-")),
                "{line}: {output:?}"
            );
        }
    }
    assert_eq!(output.code == Some(0), failed(&output).is_empty(), "{output:?}");
    let verdict = if output.code == Some(0) {
        "ready: "
    } else {
        "not ready: "
    };
    assert!(lines.last().is_some_and(|last| last.starts_with(verdict)), "{output:?}");
    output
}

/// The items of the failed rows.
fn failed(output: &CommandOutput) -> Vec<&str> {
    let rows = output.out.lines().filter_map(|line| line.strip_prefix("  FAIL  "));
    rows.filter_map(|row| row.split("  ").next()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn check_succeeds_if_server_and_runtime_answer() {
    let api = api().await;
    let cri = ScriptedCri::start(World::new()).await;
    let flags = Flags::for_server(&api).with("cri-endpoint", cri.endpoint());
    let paths = [flags.path("state"), flags.path("run")];
    let output = check(flags).await;
    assert_eq!((output.code, failed(&output)), (Some(0), vec![]), "{output:?}");
    for word in [
        "v1.37",
        "containerd 1.6.20",
        "delete pods ",
        "mount namespace",
        "is this node",
    ] {
        assert!(output.out.contains(word), "{word:?} is not in {}", output.out);
    }
    assert!(paths.iter().all(|path| !path.exists()), "check changes nothing");
    let writes = api.requests().into_iter().filter(|request| {
        !matches!(&*request.asked.verb, "get" | "list" | "watch") && !request.asked.path.contains("accessreviews")
    });
    assert_eq!(writes.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_variables_of_the_environment_are_ignored() {
    let api = api().await;
    let cri = ScriptedCri::start(World::new()).await;
    for proxy in ["http://127.0.0.1:1", "no proxy at all"] {
        let flags = Flags::for_server(&api).with("cri-endpoint", cri.endpoint());
        let mut command = flags.command("check");
        command.env("HTTPS_PROXY", proxy).env("https_proxy", proxy);
        let output = spawn_blocking(move || output_of(&mut command)).await.unwrap();
        assert_eq!((output.code, failed(&output)), (Some(0), vec![]), "{output:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_runtime_has_its_exit_code() {
    let api = api().await;
    let output = check(Flags::for_server(&api)).await;
    assert_eq!(
        (output.code, failed(&output)),
        (Some(69), vec!["runtime"]),
        "{output:?}"
    );
    assert!(
        output.out.contains("start the container runtime") && output.out.contains("cri.sock: Version"),
        "{output:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_api_server_has_its_exit_code() {
    let cri = ScriptedCri::start(World::new()).await;
    let output = check(Flags::valid().with("cri-endpoint", cri.endpoint())).await;
    assert_eq!(
        (output.code, failed(&output)),
        (Some(69), vec!["API server"]),
        "{output:?}"
    );
    assert!(output.out.contains("http://127.0.0.1:1/: GET /version"), "{output:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn service_without_cri_is_a_configuration_error_and_takes_precedence_over_an_unreachable_server() {
    let cri = ScriptedCri::start(World::new()).await;
    cri.speak_another_protocol().await;
    let output = check(Flags::valid().with("cri-endpoint", cri.endpoint())).await;
    assert_eq!(
        (output.code, failed(&output)),
        (Some(78), vec!["API server", "runtime"]),
        "{output:?}"
    );
    assert!(
        output.out.contains("set --cri-endpoint to the socket of containerd"),
        "{output:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_node_is_a_configuration_error() {
    let api = api().await;
    let cri = ScriptedCri::start(World::new()).await;
    let flags = Flags::for_server(&api)
        .with("cri-endpoint", cri.endpoint())
        .with("node-name", "n2");
    // An administrator may read any node.
    std::fs::write(flags.path("kubeconfig"), api.admin_kubeconfig()).unwrap();
    let output = check(flags).await;
    assert_eq!(
        (output.code, failed(&output)),
        (Some(78), vec!["node identity"]),
        "{output:?}"
    );
    assert!(
        output.out.contains("Node n2 does not exist") && output.out.contains("kubectl get nodes"),
        "{output:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn node_of_another_host_is_a_configuration_error() {
    let api = api().await;
    let cri = ScriptedCri::start(World::new()).await;
    let info = serde_json::json!({ "machineID": "another" });
    let node = serde_json::json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE }, "status": { "nodeInfo": info },
    });
    api.insert_raw(node).unwrap();
    let output = check(Flags::for_server(&api).with("cri-endpoint", cri.endpoint())).await;
    assert_eq!(
        (output.code, failed(&output)),
        (Some(78), vec!["node identity"]),
        "{output:?}"
    );
    assert!(output.out.contains("another"), "{output:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_credentials_and_missing_rights_are_other_failures() {
    let api = api().await;
    let cri = ScriptedCri::start(World::new()).await;
    let flags = Flags::for_server(&api).with("cri-endpoint", cri.endpoint());
    let unknown_user = testbed::api::kubeconfig(&api.url(), None, "stranger", "no such token");
    std::fs::write(flags.path("kubeconfig"), unknown_user).unwrap();
    let output = check(flags).await;
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(
        output.out.contains("401") && output.out.contains("renew the credentials in --kubeconfig"),
        "{output:?}"
    );

    api.faults().inject(Fault::status(500).verb("post").once());
    let output = check(Flags::for_server(&api).with("cri-endpoint", cri.endpoint())).await;
    assert_eq!(
        (output.code, failed(&output)),
        (Some(1), vec!["list pods"]),
        "{output:?}"
    );
    assert!(output.out.contains("run the check again"), "{output:?}");
    assert!(
        !output.out.contains("the kubelet's credentials"),
        "the credentials are not the cause: {output:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_of_another_node_are_reported_with_its_name() {
    let api = api().await;
    let cri = ScriptedCri::start(World::new()).await;
    let flags = Flags::for_server(&api)
        .with("cri-endpoint", cri.endpoint())
        .with("node-name", "n2");
    let output = check(flags).await;
    assert_eq!(output.code, Some(1), "{output:?}");
    let remedy =
        "set --node-name to n1, or --kubeconfig to the kubeconfig of n2: these credentials belong to system:node:n1";
    assert_eq!(output.out.matches(remedy).count(), failed(&output).len(), "{output:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn journal_of_another_node_is_an_error_and_an_unusable_one_is_reported_and_neither_is_changed() {
    let api = api().await;
    let cri = ScriptedCri::start(World::new()).await;
    let flags = || Flags::for_server(&api).with("cri-endpoint", cri.endpoint());

    let other = flags();
    std::fs::create_dir(other.path("state")).unwrap();
    let here = Identity::read(std::path::Path::new("/"));
    let journal = Journal::open(&other.path("state"), &here).unwrap();
    journal.set_node_uid("of another node").await.unwrap();
    // A killed agent leaves it like this.
    let file = other.path("state").join(FILE);
    let bytes = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, &bytes).unwrap();
    drop(journal);
    let output = check(other).await;
    assert_eq!(
        (output.code, failed(&output)),
        (Some(78), vec!["node identity"]),
        "{output:?}"
    );
    assert!(
        output
            .out
            .contains("the journal is of the Node with UID of another node"),
        "{output:?}"
    );

    let damaged = flags();
    std::fs::create_dir_all(damaged.path("state").join(FILE)).unwrap();
    std::fs::write(damaged.path("state/journal.redb.bad-20260102T030405Z"), "before").unwrap();
    let output = spawn_blocking(move || {
        let output = damaged.run("check");
        assert!(damaged.path("state").join(FILE).is_dir(), "the directory is unchanged");
        output
    });
    let output = output.await.unwrap();
    assert_eq!((output.code, failed(&output)), (Some(0), vec![]), "{output:?}");
    for words in [
        "it is not a regular file",
        "quarantines the file when it starts",
        "finished hooks, and the UID of the Node",
    ] {
        assert!(output.out.contains(words), "{words:?} is not in {output:?}");
    }
    let quarantined = "bad-20260102T030405Z was unusable";
    assert!(
        output.out.contains("WARN  quarantined files") && output.out.contains(quarantined),
        "{output:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn report_is_printed_as_json_yaml_and_wide_with_the_same_exit_code() {
    let api = api().await;
    let cri = ScriptedCri::start(World::new()).await;
    let flags = || Flags::for_server(&api).with("cri-endpoint", cri.endpoint());
    let print = async |flags: Flags, format: &'static str| {
        spawn_blocking(move || output_of(flags.command("check").args(["-o", format])))
            .await
            .unwrap()
    };
    let output = print(flags(), "json").await;
    let report: serde_json::Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!((output.code, &report["isReady"]), (Some(0), &true.into()), "{output:?}");
    let row = |id: &str| {
        let rows = report["checks"].as_array().unwrap();
        rows.iter()
            .find(|row| row["id"] == id)
            .unwrap_or_else(|| panic!("{id}: {report}"))
    };
    assert_eq!(row("delete-pods")["group"], "rights");
    assert!(
        row("runtime")["see"]
            .as_str()
            .unwrap()
            .ends_with("docs/how-to/runbook.md#check-runtime")
    );
    let failed = print(flags().without("kubeconfig").with("node-name", "N_1"), "yaml").await;
    assert!(
        failed.code == Some(64) && failed.out.starts_with("isReady: false\nexitCode: 64\n"),
        "{failed:?}"
    );
    let wide = print(flags(), "wide").await;
    assert_eq!(
        wide.out.matches("see: ").count(),
        report["checks"].as_array().unwrap().len(),
        "{wide:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn wait_repeats_the_checks_until_the_runtime_answers() {
    let api = api().await;
    let flags = Flags::for_server(&api);
    let socket = flags.path("cri.sock");
    let mut command = flags.command("check");
    let command = command.args(["--wait", "60s"]).stdout(Stdio::piped());
    let mut waiting = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = BufReader::new(waiting.stderr.take().unwrap())
        .lines()
        .map(Result::unwrap);
    // The first check may take seconds.
    let is_reported = |line: &String| line.contains("not ready after ") && line.contains(": runtime; waiting up to 1m");
    let (reported, errors) = spawn_blocking(move || (errors.find(is_reported), errors))
        .await
        .unwrap();
    assert!(reported.is_some(), "it does not wait for the runtime");
    let cri = ScriptedCri::start(World::new()).await;
    std::os::unix::fs::symlink(cri.path(), &socket).unwrap();
    let output = spawn_blocking(move || {
        let output = waiting.wait_with_output().unwrap();
        CommandOutput {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: errors.collect(),
        }
    });
    let output = output.await.unwrap();
    assert_eq!((output.code, failed(&output)), (Some(0), vec![]), "{output:?}");
}

#[test]
fn service_without_systemd_is_reported_with_what_was_read() {
    let flags = Flags::valid();
    let mut command = flags.command("check");
    command
        .arg("--service")
        .env("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/no/such/bus");
    let output = output_of(&mut command);
    for words in [
        "service unit",
        "systemd does not answer on D-Bus",
        "/etc/default/pod-teardown",
        "#check-service-unit",
    ] {
        assert!(output.out.contains(words), "{words:?} is not in {output:?}");
    }
}

/// Flags of an agent that only collects.
fn collector_flags(api: &MemApiServer) -> Flags {
    let flags = Flags::valid().with("mode", "never").with_path("gc-kubeconfig", "gc");
    std::fs::write(flags.path("gc"), api.collector_kubeconfig()).unwrap();
    flags
}

#[tokio::test(flavor = "multi_thread")]
async fn collectors_server_cluster_and_rights_are_checked_without_changes() {
    let api = api().await;
    let output = check(collector_flags(&api)).await;
    assert_eq!((output.code, failed(&output)), (Some(0), vec![]), "{output:?}");
    for word in [
        "collector API server",
        "v1.37",
        "UID of the namespace kube-system",
        "may collect all",
    ] {
        assert!(output.out.contains(word), "{word:?} is not in {}", output.out);
    }
    let writes = api.requests().into_iter().filter(|request| {
        !matches!(&*request.asked.verb, "get" | "list" | "watch") && !request.asked.path.contains("accessreviews")
    });
    assert_eq!(writes.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_rights_and_unreachable_server_of_the_collector_are_reported() {
    let api = api().await;
    let flags = collector_flags(&api);
    // A node may not read objects of other nodes.
    std::fs::write(flags.path("gc"), api.node_kubeconfig(NODE)).unwrap();
    let output = check(flags).await;
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(output.out.contains("deploy/gc-rbac.yaml"), "{output:?}");

    let flags = collector_flags(&api);
    std::fs::copy(flags.path("kubeconfig"), flags.path("gc")).unwrap();
    let output = check(flags).await;
    assert_eq!(
        (output.code, failed(&output)),
        (Some(69), vec!["collector API server"]),
        "{output:?}"
    );
    assert!(output.out.contains("http://127.0.0.1:1/"), "{output:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_token_of_the_collector_is_reported() {
    let api = api().await;
    let flags = collector_flags(&api);
    // {"exp":1767225600}, at the first second of 2026.
    let token = "e30.eyJleHAiOjE3NjcyMjU2MDB9.signature";
    std::fs::write(
        flags.path("gc"),
        testbed::api::kubeconfig(&api.url(), None, "collector", token),
    )
    .unwrap();
    let output = check(flags).await;
    assert_eq!(output.code, Some(78), "{output:?}");
    assert!(output.out.contains("expired at 2026-01-01T00:00:00Z"), "{output:?}");
}
