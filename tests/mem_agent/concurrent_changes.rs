//! Concurrent changes during a termination: requests, namesakes, lost answers, later decisions, events and lists.

use std::time::Duration;

use pod_teardown::ops::admin::stop::{StopOutcome, StopRequest};
use serde_json::json;
use testbed::{
    apiserver::faults::{Action, Fault},
    scripted_cri::{Kind, StopContainer, expect},
};
use tokio::time::{Instant, sleep};
use tonic::Code;

use crate::{
    node::{Node, secs, wait_until},
    node_identity::{recorded_node, replaced},
    pods::{plain, pod},
    server::inject_fault,
    stop_requests::{ask, eviction, outcome},
};

/// Twelve pods in a store restored to a state before them: StatefulSets created them again with other UIDs.
async fn pods_with_namesakes() -> (Node, Vec<String>) {
    let mut node = Node::new().await;
    let names: Vec<_> = (0..12).map(|number| format!("db-{number}")).collect();
    for name in &names {
        node.simple_pod(name);
    }
    node.start().await;
    let own = recorded_node(&node).await;
    replaced(&mut node, 1).await;
    node.insert(own);
    for name in &names {
        let mut again = pod(name, &plain());
        again["metadata"]["uid"] = format!("new-{name}").into();
        node.insert(again);
    }
    wait_until("the list is blocked", async || {
        node.status().await.watch.absence_hold.is_some()
    })
    .await;
    wait_until("all are known", async || node.status().await.watch.pods == 24).await;
    node.cri.allow_everything();
    (node, names)
}

#[tokio::test(start_paused = true)]
async fn request_with_a_uid_selects_that_pod_among_namesakes() {
    let (node, names) = pods_with_namesakes().await;
    let mut refused = Vec::new();
    for name in &names {
        let what = StopRequest {
            uid: Some(format!("new-{name}")),
            ..StopRequest::default()
        };
        if let Err(error) = ask(&node, &format!("{name}/stop"), &what).await {
            refused.push(error.to_string());
        }
    }
    assert!(refused.is_empty(), "{} of 12: {refused:#?}", refused.len());
}

/// A wrong choice between namesakes would be random, so there are twelve.
#[tokio::test(start_paused = true)]
async fn request_by_name_never_selects_a_pod_missing_in_the_api() {
    let (node, names) = pods_with_namesakes().await;
    let mut old = Vec::new();
    for name in &names {
        if let Ok((uid, _)) = ask(&node, &format!("{name}/stop"), &StopRequest::default()).await
            && uid != format!("new-{name}")
        {
            old.push(uid);
        }
    }
    assert!(old.is_empty(), "{old:?}");
}

#[tokio::test(start_paused = true)]
async fn succeeded_pod_never_becomes_failed() {
    let mut node = Node::new().await;
    node.pod("web", &plain(), |pod| {
        drop(pod.container("main").ends_after_term(secs(5), 0));
    });
    node.start().await;
    node.cri.allow_everything();
    ask(&node, "web/stop", &StopRequest::default()).await.unwrap();
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    // The last watch event: a label is set.
    let mut labelled = node.get("web").await.unwrap();
    labelled["metadata"]["labels"] = json!({ "a": "b" });
    node.insert(labelled);
    sleep(secs(1)).await;
    inject_fault(&node, Fault::new(Action::StallWatch));
    // The server applies the request, and its answer is lost.
    inject_fault(&node, Fault::new(Action::LoseResponse).resource("pods/status").once());
    wait_until("the API shows its end", async || {
        node.get("web").await.unwrap()["status"]["phase"] == "Succeeded"
    })
    .await;
    ask(&node, "web/stop", &eviction("Evicted")).await.unwrap();
    assert!(outcome(&node, "web", 60).await.terminated);
    sleep(secs(30)).await;
    assert_eq!(node.get("web").await.unwrap()["status"]["phase"], "Succeeded");
}

#[tokio::test(start_paused = true)]
async fn shorter_grace_applies_to_a_pod_between_attempts() {
    let mut node = Node::new().await;
    let mut patient = pod("web", &plain());
    patient["spec"]["terminationGracePeriodSeconds"] = 3600.into();
    node.pod("web", &plain(), |pod| drop(pod.container("main")));
    node.insert(patient);
    node.start().await;
    node.cri
        .any_number_of(expect(StopContainer::any()).error(Code::Unknown, "busy"));
    ask(&node, "web/stop", &StopRequest::default()).await.unwrap();
    node.wait_blocked("web", "busy").await;
    // The backoff has grown.
    sleep(secs(300)).await;
    let stops = || {
        node.kinds()
            .iter()
            .filter(|(kind, _)| *kind == Kind::StopContainer)
            .count()
    };
    let before = stops();
    wait_until("an attempt has just failed", async || stops() > before).await;
    sleep(secs(1)).await;
    node.cri.allow_everything();
    let (began, before) = (Instant::now(), stops());
    let what = StopRequest {
        grace_period_seconds: Some(1),
        ..StopRequest::default()
    };
    ask(&node, "web/stop", &what).await.unwrap();
    wait_until("the pod is stopped again", async || stops() > before).await;
    assert!(began.elapsed() < secs(5), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn unreadable_pod_whose_object_is_deleted_is_reported() {
    let mut node = Node::new().await;
    node.simple_pod("lives");
    node.simple_pod("web");
    let mut odd = pod("web", &plain());
    odd["metadata"]["annotations"] = "mirror".into();
    node.insert(odd);
    node.start().await;
    wait_until("it is reported", async || {
        node.status().await.counters.pods_unreadable == 1
    })
    .await;
    node.cri.allow_everything();
    node.delete("web", Some(0)).await;
    wait_until("its object is deleted", async || node.get("web").await.is_none()).await;
    sleep(secs(900)).await;
    let answer = node.status().await.watch.unmanaged;
    let ended = node
        .cri
        .look(|world| world.containers.values().all(|it| it.pod_uid != "uid-web"));
    assert!(ended || !answer.is_empty(), "its containers run on without a report");
}

#[tokio::test(start_paused = true)]
async fn known_pod_with_an_unreadable_object_is_torn_down_after_its_deletion() {
    let mut node = Node::with_pods(&["lives", "web"]).await;
    node.start().await;
    node.cri.allow_everything();
    let mut odd = node.get("web").await.unwrap();
    odd["metadata"]["annotations"] = "mirror".into();
    node.insert(odd);
    wait_until("it is reported", async || {
        node.status().await.counters.pods_unreadable == 1
    })
    .await;
    node.delete("web", Some(0)).await;
    node.wait_torn_down("web").await;
}

#[tokio::test(start_paused = true)]
async fn eviction_during_a_status_update_is_in_the_final_status() {
    let mut node = Node::new().await;
    node.simple_pod("web");
    node.start().await;
    node.cri.allow_everything();
    // Another client changes the object all the time, and reads are slow.
    inject_fault(&node, Fault::status(409).resource("pods/status"));
    inject_fault(&node, Fault::delay(secs(3)).verb("list").resource("pods"));
    ask(&node, "web/stop", &StopRequest::default()).await.unwrap();
    let refused = || node.api.requests().iter().filter(|it| it.code == Some(409)).count();
    wait_until("its status is refused", async || refused() > 0).await;
    node.calls(1, |seen| seen.kind == Kind::StopPodSandbox).await;
    let before = refused();
    wait_until("its last status is refused", async || refused() > before).await;
    ask(&node, "web/stop", &eviction("Evicted")).await.unwrap();
    node.api.faults().clear();
    assert!(outcome(&node, "web", 60).await.terminated);
    let status = node.get("web").await.unwrap()["status"].take();
    assert_eq!(
        (&status["phase"], &status["reason"]),
        (&json!("Failed"), &json!("Evicted"))
    );
}

#[tokio::test(start_paused = true)]
async fn terminated_pod_reports_no_wait() {
    let mut node = Node::new().await;
    node.simple_pod("web");
    node.start().await;
    node.cri
        .in_order([expect(StopContainer::any()).error(Code::Unknown, "busy")]);
    ask(&node, "web/stop", &StopRequest::default()).await.unwrap();
    node.wait_blocked("web", "busy").await;
    node.cri.allow_everything();
    wait_until("the pod is kept", async || {
        node.status().await.pods.awaiting_deletion == 1
    })
    .await;
    let StopOutcome { terminated, trace } = outcome(&node, "web", 0).await;
    assert!(terminated);
    assert_eq!(trace.blocked, []);
}

#[tokio::test(start_paused = true)]
async fn status_of_an_evicted_pod_is_sent_before_its_containers_are_stopped() {
    let mut node = Node::new().await;
    node.pod("web", &plain(), |pod| drop(pod.container("main").ignores_term()));
    node.start().await;
    node.cri.allow_everything();
    ask(&node, "web/stop", &eviction("Evicted")).await.unwrap();
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    sleep(secs(20)).await;
    let patched = node.api.requests().iter().filter(|it| it.asked.verb == "patch").count();
    assert!(patched > 0, "{}", node.get("web").await.unwrap()["status"]);
}

#[tokio::test(start_paused = true)]
async fn watch_events_during_an_absence_check_are_no_restored_store() {
    let mut node = Node::new().await;
    node.simple_pod("db");
    node.pod("web", &plain(), |pod| {
        drop(pod.container("main").ends_after_term(secs(5), 0));
    });
    node.start().await;
    node.cri.allow_everything();
    node.delete("web", None).await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    sleep(secs(1)).await;
    // A slow server or network.
    inject_fault(&node, Fault::delay(secs(2)).resource("pods/status").once());
    inject_fault(
        &node,
        Fault::delay(Duration::from_millis(50)).verb("get").resource("nodes"),
    );
    node.calls(1, |seen| seen.kind == Kind::StopPodSandbox).await;
    sleep(secs(1)).await;
    node.delete("web", Some(0)).await;
    node.wait_deleted("web").await;
    // Other pods of this node keep running.
    for number in 0..300 {
        let mut db = node.get("db").await.unwrap();
        db["metadata"]["labels"] = json!({ "n": number.to_string() });
        node.insert(db);
        sleep(Duration::from_millis(10)).await;
    }
    node.wait_torn_down("web").await;
    assert_eq!(node.status().await.watch.absence_hold, None);
    node.crash().await;
    node.start().await;
    assert_eq!(node.status().await.watch.absence_hold, None);
}
