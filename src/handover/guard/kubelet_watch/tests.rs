//! A watch with scripted events, on a paused clock.

use std::{
    collections::BTreeMap,
    io,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use futures::{
    future::{BoxFuture, ready},
    stream::poll_fn,
};
use parking_lot::Mutex;
use tokio::{
    sync::{
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
        oneshot,
    },
    time::sleep,
};
use tokio_util::task::AbortOnDropHandle;

use super::{super::kubelet::tests::search, *};
use crate::{
    journal::Journal,
    node::{effects::Effects, process_events::ProcessEvents},
    teardown::work::Work,
};

/// Longer than any handling of an event, and shorter than any interval.
const MOMENT: Duration = Duration::from_millis(20);

/// Events that a test sends. Only the first subscription gets any.
#[derive(Default)]
struct Script {
    execs: Mutex<Option<UnboundedReceiver<Execs>>>,
    exits: Mutex<BTreeMap<i32, oneshot::Receiver<()>>>,
    /// How often an exit may be asked for that is reported at once; `None`: it is reported by `exits`.
    early_exits: Option<AtomicUsize>,
}

impl ProcessEvents for Script {
    fn execs(&self) -> io::Result<BoxStream<'static, Execs>> {
        let mut execs = self.execs.lock();
        let mut execs = execs.take().ok_or(io::ErrorKind::Unsupported)?;
        Ok(poll_fn(move |context| execs.poll_recv(context)).boxed())
    }

    fn exit(&self, pid: i32) -> io::Result<BoxFuture<'static, ()>> {
        if let Some(left) = &self.early_exits {
            assert!(
                left.fetch_sub(1, Ordering::SeqCst) > 0,
                "it is asked for without a pause"
            );
            return Ok(ready(()).boxed());
        }
        let mut exits = self.exits.lock();
        let exit = exits.remove(&pid).ok_or(io::ErrorKind::NotFound)?;
        Ok(async move { drop(exit.await) }.boxed())
    }
}

/// A node with a watch.
struct WatchedNode {
    proc: tempfile::TempDir,
    kubelet: Arc<KubeletWatch>,
    watch: AbortOnDropHandle<()>,
}

impl WatchedNode {
    /// The last search was half an idle interval ago, and the kernel had reported all starts until then.
    async fn new(script: Option<Script>) -> Self {
        let (proc, mut search) = search();
        search.events = script.map(|script| Arc::new(script) as Arc<dyn ProcessEvents>);
        let (journal, work) = (Journal::in_memory(), Work::default());
        let kubelet = Arc::new(KubeletWatch::new(search, journal, work, Arc::default()));
        // Without the line about events: it takes a subscription of its own.
        let watched = Arc::clone(&kubelet);
        let watch = tokio::spawn(async move {
            loop {
                watched.watch_for_change().await;
            }
        });
        sleep(SEARCH_INTERVAL / 2).await;
        Self {
            proc,
            kubelet,
            watch: AbortOnDropHandle::new(watch),
        }
    }

    fn start(&self, pid: i32, name: &str) {
        let dir = self.proc.path().join(pid.to_string());
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("comm"), format!("{name}\n")).unwrap();
    }

    async fn is_seen_after(&self, time: Duration) -> bool {
        sleep(time).await;
        self.kubelet.kubelet().is_some()
    }
}

fn with_events() -> (UnboundedSender<Execs>, Script) {
    let (sender, execs) = unbounded_channel();
    let script = Script {
        execs: Mutex::new(Some(execs)),
        ..Script::default()
    };
    (sender, script)
}

#[tokio::test(start_paused = true)]
async fn kubelet_is_detected_within_a_second_and_within_a_quarter_of_it_while_busy() {
    for script in [None, Some(Script::default())] {
        let node = WatchedNode::new(script).await;
        node.start(77, "kubelet");
        assert!(!node.is_seen_after(SEARCH_INTERVAL / 4).await);
        assert!(node.is_seen_after(SEARCH_INTERVAL / 4 + MOMENT).await);
        let node = WatchedNode::new(None).await;
        let _pod = node
            .kubelet
            .work
            .begin(&Effects::ungated(), "default/web-0".to_owned())
            .unwrap();
        sleep(MOMENT).await;
        node.start(77, "kubelet");
        assert!(node.is_seen_after(BUSY_SEARCH_INTERVAL).await);
    }
}

#[tokio::test(start_paused = true)]
async fn event_of_a_kubelet_blocks_effects_at_once() {
    let (events, script) = with_events();
    let node = WatchedNode::new(Some(script)).await;
    node.start(76, "sleep");
    node.start(77, "kubelet");
    events.send(Execs::Pids(vec![75, 76])).unwrap();
    assert!(!node.is_seen_after(MOMENT).await);
    assert_eq!(node.kubelet.check(), Ok(()));
    events.send(Execs::Pids(vec![76, 77])).unwrap();
    assert!(node.is_seen_after(MOMENT).await);
    assert!(node.kubelet.check().is_err());
}

#[tokio::test(start_paused = true)]
async fn kubelet_without_an_event_is_found_by_the_next_search() {
    let (_events, script) = with_events();
    let node = WatchedNode::new(Some(script)).await;
    node.start(77, "kubelet");
    assert!(!node.is_seen_after(PROOF_INTERVAL - SEARCH_INTERVAL).await);
    assert!(node.is_seen_after(SEARCH_INTERVAL).await);
}

#[tokio::test(start_paused = true)]
async fn lost_events_and_the_end_of_events_lead_to_a_search_at_once() {
    for is_end in [false, true] {
        let (events, script) = with_events();
        let node = WatchedNode::new(Some(script)).await;
        node.start(77, "kubelet");
        assert!(!node.is_seen_after(MOMENT).await);
        if is_end {
            drop(events);
        } else {
            events.send(Execs::Lost).unwrap();
        }
        assert!(node.is_seen_after(MOMENT).await);
    }
}

#[tokio::test(start_paused = true)]
async fn process_that_may_still_become_a_kubelet_leads_to_searches_at_the_interval_without_events() {
    let (events, script) = with_events();
    let node = WatchedNode::new(Some(script)).await;
    node.start(77, "kubelet-amd64");
    events.send(Execs::Pids(vec![77])).unwrap();
    sleep(MOMENT).await;
    node.start(77, "kubelet");
    assert!(node.is_seen_after(SEARCH_INTERVAL).await);
}

#[tokio::test(start_paused = true)]
async fn exit_of_the_kubelet_is_seen_at_once_and_without_the_event_by_the_next_probe_of_its_process() {
    for has_event in [true, false] {
        let (exit, exits) = oneshot::channel();
        let script = Script {
            exits: Mutex::new([(77, exits)].into()),
            ..Script::default()
        };
        let node = WatchedNode::new(Some(script)).await;
        node.start(77, "kubelet");
        assert!(node.is_seen_after(PROOF_INTERVAL).await);
        std::fs::remove_file(node.proc.path().join("77/comm")).unwrap();
        let _exit = if has_event {
            exit.send(()).unwrap();
            None
        } else {
            Some(exit)
        };
        assert_eq!(node.is_seen_after(MOMENT).await, !has_event);
        assert!(!node.is_seen_after(PROOF_INTERVAL).await);
    }
}

#[tokio::test(start_paused = true)]
async fn exit_that_is_reported_too_early_is_no_reason_to_probe_without_a_pause() {
    let (exit, exits) = oneshot::channel();
    let script = Script {
        exits: Mutex::new([(77, exits)].into()),
        ..Script::default()
    };
    let node = WatchedNode::new(Some(script)).await;
    node.start(77, "kubelet");
    assert!(node.is_seen_after(PROOF_INTERVAL).await);
    exit.send(()).unwrap();
    assert!(node.is_seen_after(MOMENT).await, "it runs");
    std::fs::remove_file(node.proc.path().join("77/comm")).unwrap();
    assert!(node.is_seen_after(SEARCH_INTERVAL / 2).await);
    assert!(!node.is_seen_after(SEARCH_INTERVAL / 2).await);
}

#[tokio::test(start_paused = true)]
async fn exit_that_is_reported_again_and_again_is_asked_for_with_a_pause() {
    let script = Script {
        early_exits: Some(AtomicUsize::new(6)),
        ..Script::default()
    };
    let node = WatchedNode::new(Some(script)).await;
    node.start(77, "kubelet");
    assert!(node.is_seen_after(SEARCH_INTERVAL).await);
    sleep(BUSY_SEARCH_INTERVAL).await;
    assert!(!node.watch.is_finished(), "it has panicked");
    std::fs::remove_file(node.proc.path().join("77/comm")).unwrap();
    assert!(!node.is_seen_after(SEARCH_INTERVAL).await);
}
