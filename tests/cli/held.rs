//! `held` and `release`, as the operator meets them.

use serde_json::{Value, json};
use testbed::{
    apiserver::{Config, MemApiServer},
    scripted_cri::{ScriptedCri, World},
};

use crate::{
    command::{Flags, NODE, Told, told},
    run::Agent,
};

fn asked(agent: &Agent, arguments: &[&str]) -> Told {
    let socket = agent.flags.socket().to_str().unwrap();
    told(&[arguments, &["--socket", socket]].concat())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_held_is_shown_and_released_by_its_name_and_who_asks_is_logged() {
    let config = Config {
        nodes: vec![NODE.to_owned()],
        ..Config::default()
    };
    let api = MemApiServer::start(config).await.unwrap();
    let cri = ScriptedCri::start(World::new()).await;
    let watches = |agent: &Agent| agent.status()["watch"]["state"] == "watching";
    let mut agent = Agent::start(
        Flags::at(&api)
            .with("cri-endpoint", cri.endpoint())
            .with("pods", "always"),
    );
    agent.until("it watches", watches).await;
    let nothing = asked(&agent, &["held"]);
    assert_eq!(
        (nothing.code, nothing.out.as_str()),
        (Some(0), "Nothing is held that could be released.\n")
    );
    assert_eq!(agent.terminate().await, Some(0));

    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE, "uid": "another-uid" } });
    api.insert_raw(node).unwrap();
    let mut agent = Agent::start(agent.flags);
    agent.says("Wrong world").await;
    let held = asked(&agent, &["held"]);
    for words in [
        "node-uid\n  since    2",
        "another-uid",
        "\n  release  this is the right Node",
    ] {
        assert!(held.out.contains(words), "{words:?} is not in {held:?}");
    }
    let report: Value = serde_json::from_str(&asked(&agent, &["held", "--json"]).out).unwrap();
    assert_eq!(
        (&report["held"], &report["items"][0]["item"]),
        (&Value::Null, &json!("node-uid"))
    );

    let wrong = asked(&agent, &["release", "node"]);
    assert_eq!((wrong.code, wrong.complaints().len()), (Some(1), 1), "{wrong:?}");
    assert!(wrong.err.contains("\"node\"; held are: node-uid"), "{wrong:?}");
    assert!(agent.status()["held"].is_string());

    let released = asked(&agent, &["release", "node-uid"]);
    assert_eq!(released.code, Some(0), "{released:?}");
    assert!(
        released.out.starts_with("node-uid is released: this is the right Node"),
        "{released:?}"
    );
    agent.until("it watches", watches).await;
    assert!(agent.status()["held"].is_null());
    let log = agent.log();
    let line = log.lines().find(|line| line.contains(r#""message":"Approved""#));
    assert!(line.is_some_and(|line| line.contains("uid 0, pid ")), "{log}");
    assert_eq!(agent.terminate().await, Some(0));
}

#[test]
fn without_an_agent_nothing_is_held_and_nothing_released() {
    for arguments in [&["held"][..], &["release", "absence"]] {
        let told = told(&[arguments, &["--socket", "/no/such/socket"]].concat());
        assert_eq!((told.code, told.complaints().len()), (Some(1), 1), "{told:?}");
        assert!(told.err.contains("no agent answers"), "{told:?}");
    }
    assert_eq!(told(&["release"]).code, Some(64));
    assert_eq!(told(&["release", ""]).code, Some(64));
}
