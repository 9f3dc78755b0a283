//! Concurrent changes during a termination: requests, namesakes, lost answers, later decisions, events and lists.

use crate::prelude::*;

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
    node.wait_status(|it| it.watch.absence_hold.is_some(), true).await;
    node.wait_status(|it| it.watch.pods, 24).await;
    node.cri.allow_everything();
    (node, names)
}

/// A wrong choice between namesakes would be random, so there are twelve. A name never selects a pod that is missing in the API.
#[tokio::test(start_paused = true)]
async fn request_with_a_uid_selects_that_pod_among_namesakes() {
    for has_uid in [true, false] {
        let (node, names) = pods_with_namesakes().await;
        for name in &names {
            let new = format!("new-{name}");
            let request = StopRequest {
                uid: has_uid.then(|| new.clone()),
                ..StopRequest::default()
            };
            match ask(&node, &format!("{name}/stop"), &request).await {
                Ok((uid, _)) => assert_eq!(uid, new),
                Err(error) => assert!(!has_uid, "{error}"),
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn succeeded_pod_never_becomes_failed() {
    let node = Node::started_with("web", &plain(), |pod| pod.container("main").ends_after_term(secs(5), 0)).await;
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
    wait_until!(node.phase("web").await == "Succeeded");
    ask(&node, "web/stop", &eviction("Evicted")).await.unwrap();
    assert!(outcome(&node, "web", 60).await.terminated);
    sleep(secs(30)).await;
    assert_eq!(node.phase("web").await, "Succeeded");
}

#[tokio::test(start_paused = true)]
async fn shorter_grace_applies_to_a_pod_between_attempts() {
    let mut node = Node::new().await;
    let mut patient = pod("web", &plain());
    patient["spec"]["terminationGracePeriodSeconds"] = 3600.into();
    node.pod("web", &plain(), |pod| pod.container("main"));
    node.insert(patient);
    node.start().await;
    node.always(expect(StopContainer::any()).error(Code::Unknown, "busy"));
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
    wait_until!(stops() > before);
    sleep(secs(1)).await;
    node.cri.allow_everything();
    let (began, before) = (Instant::now(), stops());
    let what = StopRequest {
        grace_period_seconds: Some(1),
        ..StopRequest::default()
    };
    ask(&node, "web/stop", &what).await.unwrap();
    wait_until!(stops() > before);
    assert!(began.elapsed() < secs(5), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn unreadable_pod_whose_object_is_deleted_is_reported() {
    let mut node = Node::with_pods(&["lives", "web"]).await;
    let mut odd = pod("web", &plain());
    odd["metadata"]["annotations"] = "mirror".into();
    node.insert(odd);
    node.start().await;
    node.wait_status(|it| it.counters.pods_unreadable, 1).await;
    node.cri.allow_everything();
    node.delete("web", Some(0)).await;
    node.wait_deleted("web").await;
    sleep(secs(900)).await;
    let answer = node.status().await.housekeeping.unmanaged;
    let ended = node
        .cri
        .look(|world| world.containers.values().all(|it| it.pod_uid != "uid-web"));
    assert!(ended || !answer.is_empty(), "its containers run on without a report");
}

#[tokio::test(start_paused = true)]
async fn known_pod_with_an_unreadable_object_is_torn_down_after_its_deletion() {
    let node = Node::running(&["lives", "web"]).await;
    let mut odd = node.get("web").await.unwrap();
    odd["metadata"]["annotations"] = "mirror".into();
    node.insert(odd);
    node.wait_status(|it| it.counters.pods_unreadable, 1).await;
    node.delete("web", Some(0)).await;
    node.wait_torn_down("web").await;
}

#[tokio::test(start_paused = true)]
async fn eviction_during_a_status_update_is_in_the_final_status() {
    let node = Node::running(&["web"]).await;
    // Another client changes the object all the time, and reads are slow.
    inject_fault(&node, Fault::status(409).resource("pods/status"));
    inject_fault(&node, Fault::delay(secs(3)).verb("list").resource("pods"));
    ask(&node, "web/stop", &StopRequest::default()).await.unwrap();
    let refused = || node.api.requests().iter().filter(|it| it.code == Some(409)).count();
    wait_until!(refused() > 0);
    node.calls(1, |seen| seen.kind == Kind::StopPodSandbox).await;
    let before = refused();
    wait_until!(refused() > before);
    ask(&node, "web/stop", &eviction("Evicted")).await.unwrap();
    node.api.faults().clear();
    assert!(outcome(&node, "web", 60).await.terminated);
    let status = node.get("web").await.unwrap()["status"].take();
    assert_fields(&status, &json!({ "phase": "Failed", "reason": "Evicted" }));
}

#[tokio::test(start_paused = true)]
async fn terminated_pod_reports_no_wait() {
    let node = Node::started(&["web"]).await;
    node.cri
        .in_order([expect(StopContainer::any()).error(Code::Unknown, "busy")]);
    ask(&node, "web/stop", &StopRequest::default()).await.unwrap();
    node.wait_blocked("web", "busy").await;
    node.cri.allow_everything();
    node.wait_status(|it| it.pods.awaiting_deletion, 1).await;
    let StopOutcome { terminated, trace } = outcome(&node, "web", 0).await;
    assert!(terminated);
    assert_eq!(trace.blocked, []);
}

#[tokio::test(start_paused = true)]
async fn status_of_an_evicted_pod_is_sent_before_its_containers_are_stopped() {
    let node = Node::with_stubborn_pod().await;
    node.cri.allow_everything();
    ask(&node, "web/stop", &eviction("Evicted")).await.unwrap();
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    sleep(secs(20)).await;
    let patched = node.api.requests().iter().filter(|it| it.asked.verb == "patch").count();
    assert!(patched > 0, "{}", node.get("web").await.unwrap()["status"]);
}

#[tokio::test(start_paused = true)]
async fn watch_events_during_an_absence_check_are_no_restored_store() {
    let mut node = Node::with_pods(&["db"]).await;
    node.pod("web", &plain(), |pod| pod.container("main").ends_after_term(secs(5), 0));
    node.run().await;
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
    node.restart().await;
    assert_eq!(node.status().await.watch.absence_hold, None);
}
