//! Ends that somebody asks for by the admin API.

use std::{fs, path::PathBuf};

use pod_teardown::ops::{
    admin::{
        TIMELINES,
        kill::{Ask, OUTCOMES, Outcome, PODS},
    },
    client::{self, AskError},
    end, timeline,
};
use serde_json::{Value, json};
use testbed::{
    apiserver::faults::{Action, Fault},
    scripted_cri::{Kind, StopContainer, StopPodSandbox, expect},
};
use tokio::{
    io::AsyncWriteExt as _,
    net::UnixStream,
    task::yield_now,
    time::{Instant, sleep},
};
use tonic::Code;

use crate::{
    guard::kubelet,
    log::Log,
    node::{Node, secs, until},
    pods::{exec, hooked, plain, pod},
    server::trouble,
};

pub fn eviction(reason: &str) -> Ask {
    Ask {
        reason: Some(reason.to_owned()),
        message: Some(format!("{reason} because of a test")),
        ..Ask::default()
    }
}

fn within(seconds: i64) -> Ask {
    Ask {
        grace_seconds: Some(seconds),
        ..Ask::default()
    }
}

/// Asks, and returns the UID and the grace in force.
pub async fn ask(node: &Node, path: &str, ask: &Ask) -> Result<(String, u64), AskError> {
    let granted: Value = client::tell(&node.flags.socket.socket, &format!("{PODS}/default/{path}"), ask).await?;
    let uid = granted["uid"].as_str().unwrap().to_owned();
    Ok((uid, granted["graceSeconds"].as_u64().unwrap()))
}

async fn granted(node: &Node, path: &str, what: &Ask) -> u64 {
    ask(node, path, what).await.unwrap().1
}

async fn refused(node: &Node, path: &str, what: &Ask) -> String {
    ask(node, path, what).await.unwrap_err().to_string()
}

pub async fn outcome(node: &Node, name: &str, wait: u64) -> Outcome {
    let path = format!("{OUTCOMES}/uid-{name}?wait={wait}");
    client::wait(&node.flags.socket.socket, &path, secs(wait))
        .await
        .unwrap()
}

async fn ended(node: &Node, name: &str) -> Value {
    assert!(outcome(node, name, 60).await.ended);
    node.get(name).await.unwrap()["status"].take()
}

/// As the command does it: what it says, the last line that of its end, or why there is none.
async fn followed(socket: PathBuf, path: &str, what: &Ask) -> Vec<String> {
    let (name, verb) = path.split_once('/').unwrap();
    let pod = format!("default/{name}").parse().unwrap();
    let mut said = Vec::new();
    let end = end::follow(&socket, &pod, verb, what, |line| said.push(line.to_owned())).await;
    said.push(end.map_or_else(|error| error.to_string(), |end| end::text(&end)));
    said
}

fn condition<'a>(status: &'a Value, kind: &str) -> &'a Value {
    let mut conditions = status["conditions"].as_array().unwrap().iter();
    conditions.find(|it| it["type"] == kind).unwrap_or(&Value::Null)
}

async fn node_with(name: &str, containers: &Value, stubborn: bool) -> Node {
    let mut node = Node::new().await;
    node.pod(name, containers, |pod| {
        let pod = pod.container("main");
        drop(if stubborn { pod.ignores_term() } else { pod });
    });
    node.start().await;
    node.cri.allow_everything();
    node
}

#[tokio::test(start_paused = true)]
async fn a_killed_pod_ends_with_its_hook_and_its_grace_and_keeps_its_object() {
    let node = node_with("web", &hooked(&exec()), true).await;
    assert_eq!(granted(&node, "web/kill", &within(9)).await, 9);
    assert!(!outcome(&node, "web", 0).await.ended);
    let status = ended(&node, "web").await;
    assert_eq!(status["phase"], "Failed");
    assert_eq!(status["reason"], Value::Null);
    assert_eq!(status["containerStatuses"][0]["state"]["terminated"]["exitCode"], 137);
    assert_eq!(
        node.kinds()[..2],
        [(Kind::ExecSync, Some(secs(9))), (Kind::StopContainer, Some(secs(9)))]
    );
    until("it is kept", async || node.status().await.pods.kept == 1).await;
    // A deletion afterwards takes the rest away.
    node.delete("web", None).await;
    node.nothing_left("web").await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_ends_well_on_a_kill_has_succeeded() {
    let node = node_with("web", &plain(), false).await;
    assert_eq!(granted(&node, "web/kill", &Ask::default()).await, 30);
    assert_eq!(ended(&node, "web").await["phase"], "Succeeded");
}

#[tokio::test(start_paused = true)]
async fn an_evicted_pod_has_failed_with_reason_message_and_disruption_target_whatever_it_exits_with() {
    let node = node_with("web", &plain(), false).await;
    granted(&node, "web/evict", &eviction("Evicted")).await;
    let status = ended(&node, "web").await;
    assert_eq!(
        (&status["phase"], &status["reason"], &status["message"]),
        (&json!("Failed"), &json!("Evicted"), &json!("Evicted because of a test"))
    );
    assert_eq!(status["containerStatuses"][0]["state"]["terminated"]["exitCode"], 0);
    let target = condition(&status, "DisruptionTarget");
    assert_eq!(
        (&target["status"], &target["reason"], &target["message"]),
        (
            &json!("True"),
            &json!("TerminationByKubelet"),
            &json!("Evicted because of a test")
        )
    );
    assert_eq!(node.count_events("web", "Evicted").await, 1);
}

#[tokio::test(start_paused = true)]
async fn an_eviction_wins_over_an_earlier_and_a_later_kill_and_the_last_eviction_over_the_first() {
    let node = node_with("web", &plain(), true).await;
    granted(&node, "web/kill", &Ask::default()).await;
    sleep(secs(1)).await;
    granted(&node, "web/evict", &eviction("First")).await;
    granted(&node, "web/evict", &eviction("Second")).await;
    sleep(secs(1)).await;
    assert_eq!(granted(&node, "web/kill", &within(5)).await, 5);
    let status = ended(&node, "web").await;
    assert_eq!(
        (&status["phase"], &status["reason"]),
        (&json!("Failed"), &json!("Second"))
    );
}

#[tokio::test(start_paused = true)]
async fn an_eviction_of_a_pod_that_is_being_deleted_is_what_its_last_status_says() {
    let node = node_with("web", &plain(), true).await;
    let mut held = node.get("web").await.unwrap();
    held["metadata"]["finalizers"] = json!(["test/keep"]);
    node.object(held);
    node.delete("web", Some(20)).await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    granted(&node, "web/evict", &eviction("Evicted")).await;
    let status = ended(&node, "web").await;
    assert_eq!(
        (&status["phase"], &status["reason"]),
        (&json!("Failed"), &json!("Evicted"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_kill_shortens_the_grace_of_a_pod_that_ends_and_the_same_again_or_a_longer_one_changes_nothing() {
    let mut node = Node::new().await;
    node.pod("web", &plain(), |pod| drop(pod.container("main").ignores_term()));
    node.start().await;
    node.cri.in_order([
        expect(StopContainer::of("main").timeout(secs(30))),
        expect(StopContainer::of("main").timeout(secs(8))),
    ]);
    node.delete("web", None).await;
    let began = Instant::now();
    sleep(secs(4)).await;
    for grace in [12, 12, 60] {
        assert_eq!(granted(&node, "web/kill", &within(grace)).await, 12);
        sleep(secs(1)).await;
    }
    node.cri.allow_everything();
    node.nothing_left("web").await;
    assert!(began.elapsed() < secs(15), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_kill_of_a_pod_that_has_ended_comes_to_its_end_at_once() {
    let node = node_with("web", &plain(), false).await;
    granted(&node, "web/kill", &Ask::default()).await;
    let status = ended(&node, "web").await;
    until("it is kept", async || node.status().await.pods.kept == 1).await;
    let (calls, began) = (node.cri.effects().len(), Instant::now());
    granted(&node, "web/evict", &eviction("TooLate")).await;
    assert_eq!(ended(&node, "web").await, status);
    assert_eq!((node.cri.effects().len(), began.elapsed()), (calls, secs(0)));
}

#[tokio::test(start_paused = true)]
async fn a_kill_goes_on_after_a_crash_with_its_deadline_and_its_reason() {
    let mut node = node_with("web", &plain(), true).await;
    granted(
        &node,
        "web/evict",
        &Ask {
            grace_seconds: Some(20),
            ..eviction("Evicted")
        },
    )
    .await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    let began = Instant::now();
    sleep(secs(6)).await;
    node.crash().await;
    node.start().await;
    let status = ended(&node, "web").await;
    assert_eq!(
        (&status["phase"], &status["reason"]),
        (&json!("Failed"), &json!("Evicted"))
    );
    assert!(began.elapsed() < secs(22), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_kill_while_the_api_server_is_away_stops_the_pod_and_tells_of_it_later() {
    let node = node_with("web", &plain(), false).await;
    trouble(&node, Fault::new(Action::Refuse));
    granted(&node, "web/kill", &Ask::default()).await;
    node.calls(1, |seen| seen.kind == Kind::StopPodSandbox).await;
    sleep(secs(30)).await;
    node.api.faults().clear();
    assert_eq!(ended(&node, "web").await["phase"], "Succeeded");
}

#[tokio::test(start_paused = true)]
async fn what_is_not_to_be_ended_is_refused_and_told_why() {
    let mut node = Node::new().await;
    node.polite_pod("web");
    node.polite_pod("static-n1");
    let mut mirror = pod("static-n1", &plain());
    mirror["metadata"]["annotations"] = json!({ "kubernetes.io/config.mirror": "hash" });
    node.object(mirror);
    node.start().await;
    let other = Ask {
        uid: Some("another".to_owned()),
        ..Ask::default()
    };
    assert!(refused(&node, "web/kill", &other).await.contains("UID uid-web"));
    assert!(
        refused(&node, "nobody/kill", &Ask::default())
            .await
            .contains("no pod default/nobody")
    );
    assert!(
        refused(&node, "static-n1/kill", &Ask::default())
            .await
            .contains("mirror of a static pod")
    );
    assert!(
        refused(&node, "static-n1/evict", &eviction("Evicted"))
            .await
            .contains("mirror")
    );
    assert!(
        refused(&node, "web/evict", &Ask::default())
            .await
            .contains("needs a reason")
    );
    kubelet(&node);
    until("it is seen", async || node.status().await.held.is_some()).await;
    let told = refused(&node, "web/kill", &Ask::default()).await;
    assert!(
        told.contains("a kubelet works") && told.contains("kubectl delete pod -n default web"),
        "{told}"
    );
    sleep(secs(60)).await;
    assert!(node.cri.effects().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_lasts_longer_than_it_should_is_an_event() {
    let mut node = Node::new().await;
    node.polite_pod("web");
    node.start().await;
    node.cri
        .any_number_of(expect(StopContainer::any()).error(Code::Unknown, "busy"));
    node.cri
        .any_number_of(expect(StopPodSandbox::any()).reply_ok_but_do_nothing());
    granted(&node, "web/kill", &within(5)).await;
    node.failing("web", "busy").await;
    sleep(secs(8)).await;
    assert_eq!(node.count_events("web", "ExceededGracePeriod").await, 0);
    sleep(secs(60)).await;
    assert_eq!(node.count_events("web", "ExceededGracePeriod").await, 1);
    node.cri.allow_everything();
}

#[tokio::test(start_paused = true)]
async fn whoever_evicts_a_pod_that_has_succeeded_learns_that_it_is_not_evicted() {
    let node = node_with("web", &plain(), false).await;
    granted(&node, "web/kill", &Ask::default()).await;
    ended(&node, "web").await;
    until("it is kept", async || node.status().await.pods.kept == 1).await;
    let socket = node.flags.socket.socket.clone();
    let path = format!("{PODS}/default/web/evict");
    let granted: Value = client::tell(&socket, &path, &eviction("Evicted")).await.unwrap();
    assert_eq!(
        (&granted["endedAlready"], &granted["phase"], &granted["reason"]),
        (&json!(true), &json!("Succeeded"), &Value::Null)
    );
    let Outcome { ended, story } = outcome(&node, "web", 0).await;
    assert_eq!(
        (ended, story.phase.as_deref(), story.reason),
        (true, Some("Succeeded"), None)
    );
    assert_eq!(
        followed(socket, "web/evict", &eviction("Evicted")).await,
        [
            "default/web has ended already as Succeeded: the request changes nothing; its object, containers and logs are kept \
             until it is deleted"
        ]
    );
    assert_eq!(node.count_events("web", "Evicted").await, 0);
}

#[tokio::test(start_paused = true)]
async fn whoever_kills_a_pod_that_was_evicted_learns_why_it_has_failed() {
    let node = node_with("web", &plain(), false).await;
    let socket = || node.flags.socket.socket.clone();
    let said = followed(socket(), "web/evict", &eviction("Evicted")).await;
    assert_eq!(said[0], "default/web (UID uid-web) is being ended, grace 30 s");
    assert!(
        said[1].starts_with("default/web has ended as Failed (Evicted): none"),
        "{said:?}"
    );
    let said = followed(socket(), "web/kill", &Ask::default()).await;
    assert!(
        said[0].contains("has ended already as Failed (Evicted): the request changes nothing"),
        "{said:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_eviction_has_succeeded_only_when_the_api_server_shows_it_and_until_then_it_is_told_what_it_waits_for() {
    let node = node_with("web", &plain(), false).await;
    // Told, the end would start the clock of a forced detach.
    let volume = node.pod_dir("web").join("volumes/kubernetes.io~csi/pvc-1");
    fs::create_dir_all(volume.join("mount")).unwrap();
    let socket = node.flags.socket.socket.clone();
    let waits = tokio::spawn(async move { followed(socket, "web/evict", &eviction("Evicted")).await });
    node.failing("web", "kubernetes.io~csi/pvc-1").await;
    sleep(secs(300)).await;
    assert!(!waits.is_finished());
    assert!(!outcome(&node, "web", 0).await.ended);
    assert_eq!(node.get("web").await.unwrap()["status"]["phase"], "Running");
    fs::remove_dir_all(&volume).unwrap();
    let said = waits.await.unwrap();
    assert!(
        said[1].starts_with("waits for volumes") && said[1].contains("pvc-1"),
        "{said:?}"
    );
    assert!(
        said.last().unwrap().contains("has ended as Failed (Evicted)"),
        "{said:?}"
    );
    assert_eq!(node.get("web").await.unwrap()["status"]["phase"], "Failed");
}

#[tokio::test(start_paused = true)]
async fn an_end_is_told_though_the_watch_has_not_heard_of_it() {
    let node = node_with("web", &plain(), false).await;
    trouble(&node, Fault::new(Action::StallWatch));
    sleep(secs(1)).await;
    granted(&node, "web/kill", &Ask::default()).await;
    let began = Instant::now();
    assert!(outcome(&node, "web", 10).await.ended);
    assert!(began.elapsed() < secs(30), "{:?}", began.elapsed());
    assert_eq!(node.get("web").await.unwrap()["status"]["phase"], "Succeeded");
}

#[tokio::test(start_paused = true)]
async fn the_time_that_a_pod_took_does_not_grow_once_it_has_ended() {
    let node = node_with("web", &plain(), false).await;
    granted(&node, "web/kill", &Ask::default()).await;
    until("it is kept", async || node.status().await.pods.kept == 1).await;
    ended(&node, "web").await;
    let before = outcome(&node, "web", 0).await.story;
    sleep(secs(600)).await;
    assert_eq!(outcome(&node, "web", 0).await.story.elapsed_ms, before.elapsed_ms);
    let path = format!("{TIMELINES}/default/web");
    let stories: Vec<_> = client::ask(&node.flags.socket.socket, &path).await.unwrap();
    let text = timeline::text(&stories[0]);
    assert!(
        text.contains("ended as Succeeded in 0.") && text.contains("and is kept"),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_hangs_up_at_once_is_in_the_log_with_what_became_of_its_request() {
    let log = Log::new();
    let node = node_with("web", &plain(), false).await;
    for (before, path) in ["web/kill", "nobody/kill"].iter().enumerate() {
        let mut caller = UnixStream::connect(&node.flags.socket.socket).await.unwrap();
        let request = format!("POST {PODS}/default/{path} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n");
        caller.write_all(request.as_bytes()).await.unwrap();
        // Who hangs up before anybody has read the request has asked for nothing.
        while log.lines("Somebody asks for the end of a pod").len() == before {
            yield_now().await;
        }
    }
    until("what became of both is logged", async || {
        log.lines("is granted").len() + log.lines("is refused").len() == 2
    })
    .await;
    let asked = log.lines("Somebody asks for the end of a pod");
    assert!(
        asked.len() == 2 && asked.iter().all(|line| line.contains("peer=\"uid ")),
        "{asked:?}"
    );
    assert!(log.lines("is granted")[0].contains("pod.uid=\"uid-web\""));
    assert!(log.lines("is refused")[0].contains("no pod default/nobody"));
    until("it has ended", async || {
        node.get("web").await.unwrap()["status"]["phase"] == "Succeeded"
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn before_the_runtime_is_reached_requests_are_refused_for_that_reason_and_not_done_later() {
    let mut node = Node::new().await;
    node.polite_pod("web");
    node.cri.stop().await;
    node.launch().await;
    until("it is told", async || {
        node.ask().await.is_some_and(|status| status.runtime.error.is_some())
    })
    .await;
    let began = Instant::now();
    for told in [
        refused(&node, "web/kill", &Ask::default()).await,
        refused(&node, "web/evict", &eviction("Evicted")).await,
    ] {
        assert!(
            told.contains("the end of default/web is not begun: the container runtime has not been reached yet: "),
            "{told}"
        );
    }
    let path = format!("{TIMELINES}/default/web");
    let told = client::ask::<Value>(&node.flags.socket.socket, &path)
        .await
        .unwrap_err()
        .to_string();
    assert!(told.contains("has not been reached yet"), "{told}");
    assert!(began.elapsed() < secs(1), "{:?}", began.elapsed());
    node.cri.start_again().await;
    node.cri.allow_everything();
    until("it watches", async || {
        node.ask().await.is_some_and(|status| status.watch.pods == 1)
    })
    .await;
    sleep(secs(60)).await;
    assert!(node.cri.effects().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_stops_begins_no_end_and_says_so() {
    let mut node = node_with("web", &plain(), true).await;
    node.polite_pod("late");
    until("it is known", async || node.status().await.watch.pods == 2).await;
    let socket = node.flags.socket.socket.clone();
    granted(&node, "web/kill", &within(9)).await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    let late = tokio::spawn(async move {
        sleep(secs(1)).await;
        followed(socket, "late/kill", &Ask::default()).await
    });
    assert_eq!(node.stop().await, Ok(()));
    let told = late.await.unwrap();
    assert!(
        told[0].contains("the agent is stopping") && !told[0].contains("kubectl"),
        "{told:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_stops_before_the_end_says_when_it_goes_on() {
    let mut node = node_with("web", &plain(), true).await;
    let socket = node.flags.socket.socket.clone();
    let waits = tokio::spawn(async move { followed(socket, "web/kill", &Ask::default()).await });
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    assert_eq!(node.stop().await, Ok(()));
    let said = waits.await.unwrap();
    let last = said.last().unwrap();
    for words in [
        "the agent has gone while default/web was being ended",
        "goes on when the agent starts",
        "pod-teardown status",
    ] {
        assert!(last.contains(words), "{words:?} is not in {said:?}");
    }
}
