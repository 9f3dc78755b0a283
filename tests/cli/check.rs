//! `check`: its rows and exit codes.

use pod_teardown::{
    journal::{FILE, Journal},
    node::identity::Identity,
};
use testbed::{
    apiserver::{MemApiServer, faults::Fault},
    scripted_cri::{ScriptedCri, World},
};
use tokio::task::spawn_blocking;

use crate::{
    command::{CommandOutput, Flags, NODE, output_of},
    run::api,
};

/// An API server and a runtime that answer.
async fn servers() -> (MemApiServer, ScriptedCri) {
    (api().await, ScriptedCri::start(World::new()).await)
}

/// Valid flags for them.
fn flags_for(api: &MemApiServer, cri: &ScriptedCri) -> Flags {
    Flags::for_server(api).with("cri-endpoint", cri.endpoint())
}

/// `check` exits with this code, and has these failed rows and words.
async fn assert_check(flags: Flags, code: i32, rows: &[&str], words: &[&str]) {
    assert_output(&check(flags).await, code, rows, words);
}

#[track_caller]
fn assert_output(output: &CommandOutput, code: i32, rows: &[&str], words: &[&str]) {
    assert_eq!((output.code, &failed(output)[..]), (Some(code), rows), "{output:?}");
    for word in words {
        assert!(output.out.contains(word), "{word:?} is not in {}", output.out);
    }
}

/// The API server got no request that changes something.
fn assert_no_writes(api: &MemApiServer) {
    let writes = api.requests().into_iter().filter(|request| {
        !matches!(&*request.asked.verb, "get" | "list" | "watch") && !request.asked.path.contains("accessreviews")
    });
    assert_eq!(writes.count(), 0);
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
    let (api, cri) = servers().await;
    let flags = flags_for(&api, &cri);
    let paths = [flags.path("state"), flags.path("run")];
    let words = [
        "v1.37",
        "containerd 1.6.20",
        "delete pods ",
        "mount namespace",
        "is this node",
    ];
    assert_check(flags, 0, &[], &words).await;
    assert!(paths.iter().all(|path| !path.exists()), "check changes nothing");
    assert_no_writes(&api);
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_variables_of_the_environment_are_ignored() {
    let (api, cri) = servers().await;
    for proxy in ["http://127.0.0.1:1", "no proxy at all"] {
        let flags = flags_for(&api, &cri);
        let mut command = flags.command("check");
        command.env("HTTPS_PROXY", proxy).env("https_proxy", proxy);
        let output = spawn_blocking(move || output_of(&mut command)).await.unwrap();
        assert_output(&output, 0, &[], &[]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_server_and_runtime_have_their_exit_codes_and_a_wrong_setting_takes_precedence() {
    let (api, cri) = servers().await;
    assert_check(
        Flags::for_server(&api),
        69,
        &["runtime"],
        &["start the container runtime"],
    )
    .await;
    let flags = || Flags::valid().with("cri-endpoint", cri.endpoint());
    assert_check(flags(), 69, &["API server"], &["http://127.0.0.1:1/: GET /version"]).await;
    cri.speak_another_protocol().await;
    let remedy = "set --cri-endpoint to the socket of containerd";
    assert_check(flags(), 78, &["API server", "runtime"], &[remedy]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_node_and_node_of_another_host_are_configuration_errors() {
    let (api, cri) = servers().await;
    let flags = flags_for(&api, &cri).with("node-name", "n2");
    // An administrator may read any node.
    std::fs::write(flags.path("kubeconfig"), api.admin_kubeconfig()).unwrap();
    let words = ["Node n2 does not exist", "kubectl get nodes"];
    assert_check(flags, 78, &["node identity"], &words).await;
    let info = serde_json::json!({ "machineID": "another" });
    let node = serde_json::json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE }, "status": { "nodeInfo": info },
    });
    api.insert_raw(node).unwrap();
    assert_check(flags_for(&api, &cri), 78, &["node identity"], &["another"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_credentials_those_of_another_node_and_missing_rights_are_other_failures() {
    let (api, cri) = servers().await;
    let unknown_user = testbed::api::kubeconfig(&api.url(), None, "stranger", "no such token");
    let flags = flags_for(&api, &cri);
    std::fs::write(flags.path("kubeconfig"), unknown_user).unwrap();
    for (flags, words) in [
        (flags, ["401", "renew the credentials in --kubeconfig"]),
        (
            flags_for(&api, &cri).with("node-name", "n2"),
            ["User \"system:node:n1\"", "--node-name to the name in their user"],
        ),
    ] {
        let output = check(flags).await;
        let is_said = words.iter().all(|word| output.out.contains(word));
        assert!(output.code == Some(1) && is_said, "{words:?}: {output:?}");
    }
    api.faults().inject(Fault::status(500).verb("post").once());
    let output = check(flags_for(&api, &cri)).await;
    assert_output(&output, 1, &["list pods"], &["run the check again"]);
    let blamed = output.out.contains("the kubelet's credentials");
    assert!(!blamed, "the credentials are not the cause: {output:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn journal_of_another_node_is_an_error_and_an_unusable_one_is_reported_and_neither_is_changed() {
    let (api, cri) = servers().await;
    let other = flags_for(&api, &cri);
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
    let words = "the journal is of the Node with UID of another node";
    assert_check(other, 78, &["node identity"], &[words]).await;

    let damaged = flags_for(&api, &cri);
    std::fs::create_dir_all(damaged.path("state").join(FILE)).unwrap();
    std::fs::write(damaged.path("state/journal.redb.bad-20260102T030405Z"), "before").unwrap();
    let output = spawn_blocking(move || {
        let output = damaged.run("check");
        assert!(damaged.path("state").join(FILE).is_dir(), "the directory is unchanged");
        output
    });
    let output = output.await.unwrap();
    let words = [
        "it is not a regular file",
        "quarantines the file when it starts",
        "finished hooks, and the UID of the Node",
        "WARN  quarantined files",
        "bad-20260102T030405Z was unusable",
    ];
    assert_output(&output, 0, &[], &words);
}

#[tokio::test(flavor = "multi_thread")]
async fn report_is_printed_as_json_and_wide_with_the_same_exit_code() {
    let (api, cri) = servers().await;
    let flags = || flags_for(&api, &cri);
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
    let failed = print(flags().without("kubeconfig").with("node-name", "N_1"), "json").await;
    let failed_report: serde_json::Value = serde_json::from_str(&failed.out).unwrap();
    assert_eq!(
        (failed.code, &failed_report["exitCode"]),
        (Some(64), &64.into()),
        "{failed:?}"
    );
    let wide = print(flags(), "wide").await;
    assert_eq!(
        wide.out.matches("see: ").count(),
        report["checks"].as_array().unwrap().len(),
        "{wide:?}"
    );
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
    let words = [
        "collector API server",
        "v1.37",
        "UID of the namespace kube-system",
        "may collect all",
    ];
    assert_check(collector_flags(&api), 0, &[], &words).await;
    assert_no_writes(&api);
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
    assert_check(flags, 69, &["collector API server"], &["http://127.0.0.1:1/"]).await;
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
