//! Runs the garbage collector.

use std::{io, sync::Arc, thread, time::Duration};

use futures::future::{Fuse, FutureExt as _, join};
use tokio::{
    runtime,
    sync::{Notify, oneshot, watch},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use crate::{
    api::{Dial, MetadataClient},
    collector::{
        collect::collect,
        leader_election::{self, LeaderElection},
        shared::Shared,
    },
    config::GcSettings,
    events::{self, Events},
    model::{problem::Problem, problems},
    node::effects::Effects,
    ops::admin::collector::CollectorAdmin,
    tasks::spawn,
};

/// Delay before a restart of the collector with an empty graph.
const RESTART_DELAY: Duration = Duration::from_secs(1);

/// The garbage collector of this agent, before its thread starts.
pub(super) struct CollectorThread {
    node_name: String,
    /// The state that the admin socket serves, too.
    pub shared: CollectorAdmin,
}

// === impl CollectorThread ===

impl CollectorThread {
    pub fn new(settings: GcSettings, node_name: &str, dial: Option<Dial>) -> Result<Self, Problem> {
        let identity = leader_election::identity(node_name).map_err(|error| {
            Problem::configuration(format!("random numbers: {error}"), "let the agent read /dev/urandom")
        })?;
        let election = LeaderElection::new(identity, settings.mode);
        let effects = Effects::new(election.gate());
        let client = MetadataClient::new(&settings.kube, settings.kubeconfig, effects, dial)
            .map_err(|error| problems::api_client("--gc-kubeconfig", &error))?;
        Ok(Self {
            node_name: node_name.to_owned(),
            shared: CollectorAdmin {
                client,
                election,
                current: watch::Sender::new(None),
                earlier: watch::Sender::default(),
                counters: Arc::default(),
            },
        })
    }

    /// Starts the collector's own thread, so that it does not delay pods. The receiver completes when the thread exits.
    ///
    /// # Errors
    /// When the thread cannot be created.
    pub fn start(self, stop: CancellationToken) -> Result<Fuse<oneshot::Receiver<()>>, Problem> {
        let no_thread = |error: io::Error| {
            let what = format!("no thread for the collector: {error}");
            Problem::configuration(what, "check the limits of this process")
        };
        let (exited, exit) = oneshot::channel();
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(no_thread)?;
        let run = move || {
            runtime.block_on(self.run(stop));
            exited.send(()).ok();
        };
        let thread = thread::Builder::new().name("collector".to_owned());
        thread.spawn(run).map_err(no_thread)?;
        Ok(exit.fuse())
    }

    /// Collects while this agent is the leader, until it is stopped.
    async fn run(self, stop: CancellationToken) {
        let stopped = Notify::new();
        let collecting = async {
            tokio::select! {
                // A stop takes precedence.
                biased;
                () = stop.cancelled() => {}
                // These never return.
                () = self.collect() => {}
                () = self.shared.client.reload_changed_credentials() => {}
            }
            self.end_term();
            // No write is in progress: another agent may become the leader.
            stopped.notify_one();
        };
        let electing = self.shared.election.run(&self.shared.client, stopped.notified());
        join(collecting, electing).await;
    }

    /// Drops the state, and keeps its counts.
    fn end_term(&self) {
        // Metrics read both under this lock.
        self.shared.earlier.send_modify(|earlier| {
            if let Some(shared) = self.shared.current.send_replace(None) {
                earlier.counts = shared.lock().counts.clone();
            }
        });
    }

    async fn collect(&self) {
        let mut role = self.shared.election.watch();
        let send = send_events(self.shared.client.clone());
        let (events, sender) = Events::new(send, &self.node_name, Arc::clone(&self.shared.counters));
        let _sender = spawn(sender);
        loop {
            if role.wait_for(Result::is_ok).await.is_err() {
                return;
            }
            let shared = Shared::default().with_events(events.clone());
            self.shared.earlier.send_modify(|earlier| {
                earlier.active_periods += 1;
                shared.lock().counts = earlier.counts.clone();
            });
            let shared = Arc::new(shared);
            self.shared.current.send_replace(Some(Arc::clone(&shared)));
            let lost = tokio::select! {
                why = collect(self.shared.client.clone(), shared) => Some(why),
                // Any change ends this term.
                _ = role.changed() => None,
            };
            self.end_term();
            if let Some(why) = lost {
                tracing::error!(why, "Collector restarts with an empty graph");
                self.shared.earlier.send_modify(|earlier| earlier.resets += 1);
                sleep(RESTART_DELAY).await;
            }
        }
    }
}

fn send_events(client: MetadataClient) -> events::SendEvent {
    Arc::new(move |event| {
        let client = client.clone();
        Box::pin(async move { client.write_event(event).await })
    })
}
