//! Stops of many pods, which wait for slots.

use crate::prelude::*;

/// More than a node has slots.
const MANY: usize = 110;

/// A node with pods whose network plugin does not answer: each stop of their sandboxes fails after 10 s.
async fn without_network() -> (Node, Vec<String>) {
    let node = Node::new().await;
    let names: Vec<_> = (0..MANY).map(|number| format!("hangs-{number}")).collect();
    for name in &names {
        node.simple_pod(name);
        let stop = expect(StopPodSandbox::of(name)).then(secs(10));
        node.always(stop.error(Code::Unknown, "CNI timeout"));
    }
    (node, names)
}

async fn started(node: &mut Node, names: &[String]) {
    node.run().await;
    node.delete_all(names, Some(10)).await;
}

#[tokio::test(start_paused = true)]
async fn hanging_sandboxes_delay_another_pod_by_ten_seconds_at_most() {
    let (mut node, names) = without_network().await;
    node.simple_pod("web");
    started(&mut node, &names).await;
    let began = Instant::now();
    node.delete("web", Some(10)).await;
    node.wait_deleted("web").await;
    assert!(began.elapsed() < secs(11), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn hanging_sandboxes_do_not_delay_the_sigkill_of_a_container_whose_stop_fails() {
    let (mut node, names) = without_network().await;
    node.stubborn_pod("web");
    let stop = expect(StopContainer::of("main").in_pod(&uid("web")));
    node.always(stop.error(Code::Unknown, "shim is busy"));
    started(&mut node, &names).await;
    let began = node.calls(1, |_| true).await[0].0;
    node.delete("web", Some(5)).await;
    let kill = node.calls(1, |seen| {
        seen.kind == Kind::StopPodSandbox && seen.pod_uid == uid("web")
    });
    let after = kill.await[0].0 - began;
    assert!((secs(5)..secs(6)).contains(&after), "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn grace_period_that_is_shortened_while_a_stop_waits_applies_to_it() {
    let mut node = Node::new().await;
    let names: Vec<_> = (0..MANY).map(|number| format!("web-{number}")).collect();
    for name in &names {
        node.stubborn_pod(name);
    }
    node.run().await;
    node.delete_all(&names, Some(30)).await;
    sleep(Duration::from_millis(300)).await;
    let last = names.last().unwrap();
    node.delete(last, Some(1)).await;
    node.wait_deleted(last).await;
    let stops = node.calls(1, |seen| seen.kind == Kind::StopContainer && seen.pod_uid == uid(last));
    let timeouts: Vec<_> = stops.await.iter().map(|(_, seen)| seen.timeout.unwrap()).collect();
    assert!(timeouts.iter().all(|timeout| *timeout <= secs(2)), "{timeouts:?}");
}
