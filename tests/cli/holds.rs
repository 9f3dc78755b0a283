//! `holds` and `approve`: the output, and the log of an approval.

use serde_json::{Value, json};
use testbed::scripted_cri::{ScriptedCri, World};

use crate::{
    command::{CommandOutput, Flags, NODE, run_command},
    run::{Agent, api},
};

fn run(agent: &Agent, arguments: &[&str]) -> CommandOutput {
    let socket = agent.flags.socket().to_str().unwrap();
    run_command(&[arguments, &["--socket", socket]].concat())
}

#[tokio::test(flavor = "multi_thread")]
async fn safety_hold_is_listed_and_approved_by_name_and_the_user_is_logged() {
    let api = api().await;
    let cri = ScriptedCri::start(World::new()).await;
    let mut agent = Agent::start(
        Flags::for_server(&api)
            .with("cri-endpoint", cri.endpoint())
            .with("mode", "always"),
    );
    agent.until_it_watches().await;
    let nothing = run(&agent, &["holds"]);
    assert_eq!(
        (nothing.code, nothing.out.as_str()),
        (Some(0), "No safety hold waits for an approval.\n")
    );
    assert_eq!(agent.terminate().await, Some(0));

    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE, "uid": "another-uid" } });
    api.insert_raw(node).unwrap();
    let mut agent = Agent::start(agent.flags);
    agent.wait_for_log("Node identity mismatch").await;
    let held = run(&agent, &["holds"]);
    for words in [
        "node-uid\n  since    2",
        "another-uid",
        "\n  approval the UID another-uid of this Node is recorded",
    ] {
        assert!(held.out.contains(words), "{words:?} is not in {held:?}");
    }
    let report: Value = serde_json::from_str(&run(&agent, &["holds", "-ojson"]).out).unwrap();
    assert_eq!(
        (&report["blocked"], &report["items"][0]["item"]),
        (&Value::Null, &json!("node-uid"))
    );

    let wrong = run(&agent, &["approve", "node", "--yes"]);
    assert_eq!((wrong.code, wrong.error_lines().len()), (Some(1), 1), "{wrong:?}");
    assert!(wrong.err.contains("\"node\"; safety holds: node-uid"), "{wrong:?}");
    assert!(agent.status()["blocked"].is_string());

    let unasked = run(&agent, &["approve", "node-uid"]);
    assert_eq!(
        (unasked.code, unasked.error_lines().len()),
        (Some(64), 1),
        "{unasked:?}"
    );
    assert!(unasked.err.contains("repeat the command with --yes"), "{unasked:?}");
    assert!(agent.status()["blocked"].is_string(), "nothing is approved");

    let approved = run(&agent, &["approve", "node-uid", "--yes", "--reason", "joined again"]);
    assert_eq!(approved.code, Some(0), "{approved:?}");
    assert!(
        approved.out.starts_with("node-uid is approved: the UID"),
        "{approved:?}"
    );
    agent.until_it_watches().await;
    assert!(agent.status()["blocked"].is_null());
    let log = agent.log();
    let line = log.lines().find(|line| line.contains(r#""message":"Approved""#));
    let logs = |words: &str| line.is_some_and(|line| line.contains(words));
    assert!(logs("root, pid ") && logs("joined again"), "{log}");
    let last = run(&agent, &["holds"]).out;
    assert!(
        last.contains("Approved: node-uid at 2") && last.contains(": joined again"),
        "{last}"
    );
    assert_eq!(agent.terminate().await, Some(0));
}
