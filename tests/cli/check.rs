//! `check`: what stands in the way, with the code of the gravest.

use pod_teardown::{
    journal::{FILE, Journal},
    node::identity::Identity,
};
use testbed::{
    apiserver::{Config, MemApiServer, faults::Fault},
    scripted_cri::{ScriptedCri, World},
};
use tokio::task::spawn_blocking;

use crate::command::{Flags, NODE, Told, tell};

async fn api() -> MemApiServer {
    let nodes = vec![NODE.to_owned()];
    let config = Config {
        nodes,
        ..Config::default()
    };
    MemApiServer::start(config).await.unwrap()
}

/// Whatever comes of it, all that is not as it should be says what to do, and the code tells whether anything failed.
async fn check(flags: Flags) -> Told {
    let told = spawn_blocking(move || flags.tell("check")).await.unwrap();
    let lines: Vec<&str> = told.out.lines().collect();
    for (place, line) in lines.iter().enumerate() {
        if line.starts_with("FAIL  ") || line.starts_with("note  ") {
            let remedy = lines
                .get(place + 1)
                .and_then(|next| next.trim_start().strip_prefix("→ "));
            assert!(
                remedy.is_some_and(|remedy| remedy.split(' ').count() > 3),
                "{line}: {told:?}"
            );
        }
    }
    assert_eq!(told.code == Some(0), failed(&told).is_empty(), "{told:?}");
    told
}

/// The rows that failed, by what they looked at.
fn failed(told: &Told) -> Vec<&str> {
    let rows = told.out.lines().filter_map(|line| line.strip_prefix("FAIL  "));
    rows.filter_map(|row| row.split("  ").next()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn all_is_well_where_server_and_runtime_answer() {
    let api = api().await;
    let cri = ScriptedCri::start(World::new()).await;
    let flags = Flags::at(&api).with("cri-endpoint", cri.endpoint());
    let paths = [flags.path("state"), flags.path("run")];
    let told = check(flags).await;
    assert_eq!((told.code, failed(&told)), (Some(0), vec![]), "{told:?}");
    for word in [
        "v1.37",
        "containerd 1.6.20",
        "right to delete pods",
        "mount namespace",
        "is this machine",
    ] {
        assert!(told.out.contains(word), "{word:?} is not in {}", told.out);
    }
    assert!(paths.iter().all(|path| !path.exists()), "check touches nothing");
    let writes = api.requests().into_iter().filter(|request| {
        !matches!(&*request.asked.verb, "get" | "list" | "watch") && !request.asked.path.contains("accessreviews")
    });
    assert_eq!(writes.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_the_environment_names_is_for_others() {
    let api = api().await;
    let cri = ScriptedCri::start(World::new()).await;
    for proxy in ["http://127.0.0.1:1", "no proxy at all"] {
        let flags = Flags::at(&api).with("cri-endpoint", cri.endpoint());
        let mut command = flags.command("check");
        command.env("HTTPS_PROXY", proxy).env("https_proxy", proxy);
        let told = spawn_blocking(move || tell(&mut command)).await.unwrap();
        assert_eq!((told.code, failed(&told)), (Some(0), vec![]), "{told:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_that_is_away_cannot_be_reached() {
    let api = api().await;
    let told = check(Flags::at(&api)).await;
    assert_eq!((told.code, failed(&told)), (Some(69), vec!["runtime"]), "{told:?}");
    assert!(
        told.out.contains("start the container runtime") && told.out.contains("cri.sock: Version"),
        "{told:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_cannot_be_reached() {
    let cri = ScriptedCri::start(World::new()).await;
    let told = check(Flags::good().with("cri-endpoint", cri.endpoint())).await;
    assert_eq!((told.code, failed(&told)), (Some(69), vec!["API server"]), "{told:?}");
    assert!(told.out.contains("http://127.0.0.1:1/: GET /version"), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_speaks_something_else_is_a_mistake_and_comes_before_what_is_away() {
    let cri = ScriptedCri::start(World::new()).await;
    cri.speak_another_protocol().await;
    let told = check(Flags::good().with("cri-endpoint", cri.endpoint())).await;
    assert_eq!(
        (told.code, failed(&told)),
        (Some(78), vec!["API server", "runtime"]),
        "{told:?}"
    );
    assert!(told.out.contains("name the socket of containerd"), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_does_not_exist_is_a_mistake() {
    let api = api().await;
    let cri = ScriptedCri::start(World::new()).await;
    let flags = Flags::at(&api)
        .with("cri-endpoint", cri.endpoint())
        .with("node-name", "n2");
    // With rights to look at any node, as an administrator would check.
    std::fs::write(flags.path("kubeconfig"), api.admin_kubeconfig()).unwrap();
    let told = check(flags).await;
    assert_eq!((told.code, failed(&told)), (Some(78), vec!["Node"]), "{told:?}");
    assert!(
        told.out.contains("there is no Node n2") && told.out.contains("kubectl get nodes"),
        "{told:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_node_of_another_machine_is_a_mistake() {
    let api = api().await;
    let cri = ScriptedCri::start(World::new()).await;
    let info = serde_json::json!({ "machineID": "another" });
    let node = serde_json::json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE }, "status": { "nodeInfo": info },
    });
    api.insert_raw(node).unwrap();
    let told = check(Flags::at(&api).with("cri-endpoint", cri.endpoint())).await;
    assert_eq!((told.code, failed(&told)), (Some(78), vec!["Node"]), "{told:?}");
    assert!(told.out.contains("another"), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_credentials_and_missing_rights_are_failures_of_another_kind() {
    let api = api().await;
    let cri = ScriptedCri::start(World::new()).await;
    let flags = Flags::at(&api).with("cri-endpoint", cri.endpoint());
    let stranger = testbed::api::kubeconfig(&api.url(), None, "stranger", "no such token");
    std::fs::write(flags.path("kubeconfig"), stranger).unwrap();
    let told = check(flags).await;
    assert_eq!(told.code, Some(1), "{told:?}");
    assert!(
        told.out.contains("401") && told.out.contains("renew what --kubeconfig holds"),
        "{told:?}"
    );

    api.faults().inject(Fault::status(500).verb("post").once());
    let told = check(Flags::at(&api).with("cri-endpoint", cri.endpoint())).await;
    assert_eq!(
        (told.code, failed(&told)),
        (Some(1), vec!["right to list pods"]),
        "{told:?}"
    );
    assert!(told.out.contains("run the check again"), "{told:?}");
    assert!(
        !told.out.contains("the kubelet's credentials"),
        "they are not at fault: {told:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_of_another_node_are_told_by_its_name() {
    let api = api().await;
    let cri = ScriptedCri::start(World::new()).await;
    let flags = Flags::at(&api)
        .with("cri-endpoint", cri.endpoint())
        .with("node-name", "n2");
    let told = check(flags).await;
    assert_eq!(told.code, Some(1), "{told:?}");
    let remedy =
        "give --node-name n1, or the kubeconfig of n2 as --kubeconfig: these credentials are those of system:node:n1";
    assert_eq!(told.out.matches(remedy).count(), failed(&told).len(), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_journal_of_another_node_is_a_mistake_and_one_that_cannot_be_used_is_told_and_both_stay_as_they_are() {
    let api = api().await;
    let cri = ScriptedCri::start(World::new()).await;
    let flags = || Flags::at(&api).with("cri-endpoint", cri.endpoint());

    let other = flags();
    std::fs::create_dir(other.path("state")).unwrap();
    let here = Identity::read(std::path::Path::new("/"));
    let journal = Journal::open(&other.path("state"), &here).unwrap();
    journal.set_node_uid("of another node").await.unwrap();
    // As a killed agent leaves it.
    let file = other.path("state").join(FILE);
    let bytes = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, &bytes).unwrap();
    drop(journal);
    let told = check(other).await;
    assert_eq!((told.code, failed(&told)), (Some(78), vec!["Node"]), "{told:?}");
    assert!(told.out.contains("made for of another node"), "{told:?}");

    let damaged = flags();
    std::fs::create_dir_all(damaged.path("state").join(FILE)).unwrap();
    std::fs::write(damaged.path("state/journal.redb.bad-20260102T030405Z"), "before").unwrap();
    let told = spawn_blocking(move || {
        let told = damaged.tell("check");
        assert!(damaged.path("state").join(FILE).is_dir(), "nothing is touched");
        told
    });
    let told = told.await.unwrap();
    assert_eq!((told.code, failed(&told)), (Some(0), vec![]), "{told:?}");
    for words in [
        "it is no file",
        "quarantines it when it starts",
        "hooks that have ended, which Node this was",
    ] {
        assert!(told.out.contains(words), "{words:?} is not in {told:?}");
    }
    let quarantined = "bad-20260102T030405Z could not be used";
    assert!(
        told.out.contains("note  old journal") && told.out.contains(quarantined),
        "{told:?}"
    );
}

/// With the collector's credentials at this server, and no pods.
fn collecting(api: &MemApiServer) -> Flags {
    let flags = Flags::good().with("pods", "never").with_path("gc-kubeconfig", "gc");
    std::fs::write(flags.path("gc"), api.collector_kubeconfig()).unwrap();
    flags
}

#[tokio::test(flavor = "multi_thread")]
async fn the_collectors_server_cluster_and_rights_are_looked_at_and_nothing_is_touched() {
    let api = api().await;
    let told = check(collecting(&api)).await;
    assert_eq!((told.code, failed(&told)), (Some(0), vec![]), "{told:?}");
    for word in [
        "collector's server",
        "v1.37",
        "kube-system has the UID",
        "may collect all",
    ] {
        assert!(told.out.contains(word), "{word:?} is not in {}", told.out);
    }
    let writes = api.requests().into_iter().filter(|request| {
        !matches!(&*request.asked.verb, "get" | "list" | "watch") && !request.asked.path.contains("accessreviews")
    });
    assert_eq!(writes.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_may_not_what_it_has_to_is_told_and_one_whose_server_is_away() {
    let api = api().await;
    let flags = collecting(&api);
    // A node may not look at other nodes' objects.
    std::fs::write(flags.path("gc"), api.node_kubeconfig(NODE)).unwrap();
    let told = check(flags).await;
    assert_eq!(told.code, Some(1), "{told:?}");
    assert!(told.out.contains("deploy/gc-rbac.yaml"), "{told:?}");

    let flags = collecting(&api);
    std::fs::copy(flags.path("kubeconfig"), flags.path("gc")).unwrap();
    let told = check(flags).await;
    assert_eq!(
        (told.code, failed(&told)),
        (Some(69), vec!["collector's server"]),
        "{told:?}"
    );
    assert!(told.out.contains("http://127.0.0.1:1/"), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_the_collectors_token_is_told_before_it_comes() {
    let api = api().await;
    let flags = collecting(&api);
    // {"exp":1767225600}, at the first second of 2026.
    let token = "e30.eyJleHAiOjE3NjcyMjU2MDB9.signature";
    std::fs::write(
        flags.path("gc"),
        testbed::api::kubeconfig(&api.url(), None, "collector", token),
    )
    .unwrap();
    let told = check(flags).await;
    assert_eq!(told.code, Some(78), "{told:?}");
    assert!(told.out.contains("expired at 2026-01-01T00:00:00Z"), "{told:?}");
}
