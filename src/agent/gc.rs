//! The half that collects garbage.

use std::{sync::Arc, thread, time::Duration};

use futures::future::join;
use tokio::{
    runtime,
    sync::{Notify, oneshot, watch},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use crate::{
    api::MetadataClient,
    collector::{
        Unsynced,
        collect::collect,
        counts::SharedTotals,
        leader_election::{self, CollectorRole, LeaderElection},
        shared::Shared,
    },
    config::GcSettings,
    counters::Counters,
    events::{self, Events},
    model::{problem::Problem, problems},
    node::effects::Effects,
    ops::admin::collector::CollectorAdmin,
    tasks::spawn,
};

/// After all that was known had to be forgotten.
const RESTART_DELAY: Duration = Duration::from_secs(1);

/// While the server has more to do than it can; it takes several times as long for what is under way then.
const LOAD_SLEEP: Duration = Duration::from_millis(8);

/// The collector, ready to run.
pub(super) struct CollectorThread {
    client: MetadataClient,
    election: LeaderElection,
    unsynced: Unsynced,
    aggregated_hold: Duration,
    node_name: String,
    /// State of the active collector; `None` while it is standby.
    current: watch::Sender<Option<Arc<Shared>>>,
    /// Counts of earlier active periods.
    earlier: SharedTotals,
    /// Of its events.
    counters: Arc<Counters>,
}

// === impl CollectorThread ===

impl CollectorThread {
    pub fn new(settings: GcSettings, node_name: &str, dry_run: bool) -> Result<Self, Problem> {
        let identity = leader_election::identity(node_name).map_err(|error| {
            Problem::configuration(format!("random numbers: {error}"), "let the agent read /dev/urandom")
        })?;
        let election = LeaderElection::new(identity, settings.mode, dry_run);
        let effects = Effects::new(dry_run, election.gate());
        let client = MetadataClient::new(&settings.kube, settings.kubeconfig, effects)
            .map_err(|error| problems::api_client("--gc-kubeconfig", &error))?;
        Ok(Self {
            node_name: node_name.to_owned(),
            client,
            election,
            unsynced: settings.unsynced,
            aggregated_hold: settings.aggregated_hold,
            current: watch::Sender::new(None),
            earlier: SharedTotals::default(),
            counters: Arc::default(),
        })
    }

    /// What questions about garbage are answered from.
    pub fn answers(&self) -> CollectorAdmin {
        CollectorAdmin {
            client: self.client.clone(),
            election: self.election.clone(),
            current: self.current.subscribe(),
            earlier: self.earlier.clone(),
            counters: Arc::clone(&self.counters),
        }
    }

    /// Does it on a thread of its own, which does nothing else: pods do not wait for it, nor does it share their time.
    /// The end of it is told.
    pub fn start(self, stop: CancellationToken) -> Result<oneshot::Receiver<()>, Problem> {
        let no_thread = |error: std::io::Error| {
            Problem::configuration(
                format!("no thread for the collector: {error}"),
                "check the limits of this process",
            )
        };
        let (ended, told) = oneshot::channel();
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(no_thread)?;
        thread::Builder::new()
            .name("collector".to_owned())
            .spawn(move || {
                runtime.block_on(self.run(stop));
                // Whoever started it may have gone.
                ended.send(()).ok();
            })
            .map_err(no_thread)?;
        Ok(told)
    }

    /// Collects whenever it is this agent's turn, until told to stop.
    async fn run(self, stop: CancellationToken) {
        self.election.log_start();
        let ended = Notify::new();
        let collecting = async {
            tokio::select! {
                // Nothing begins once it is told to stop.
                biased;
                () = stop.cancelled() => {}
                // These go on for ever.
                () = self.collect() => {}
                () = self.client.reload_expiring_credentials() => {}
            }
            self.ended();
            // Nothing is under way any more: another agent may have the turn.
            ended.notify_one();
        };
        join(collecting, self.election.run(&self.client, ended.notified())).await;
    }

    /// What this turn knew is of no use any more; what it did stays counted.
    fn ended(&self) {
        // Whoever adds up both sees neither without the other.
        let mut earlier = self.earlier.lock();
        let ended = self.current.send_replace(None);
        if let Some(shared) = ended {
            earlier.counts.add(&shared.lock().counts);
        }
    }

    async fn collect(&self) {
        let mut turn = self.election.watch();
        let bring = bring_events(self.client.clone());
        let (events, sender) = Events::new(bring, &self.node_name, Arc::clone(&self.counters));
        let _sender = spawn(sender);
        loop {
            let works = matches!(*turn.borrow_and_update(), CollectorRole::Active { .. });
            if !works {
                // Whose turn it is has told so already.
                if turn.changed().await.is_err() {
                    return;
                }
                continue;
            }
            self.earlier.lock().turns += 1;
            let shared = Shared::new(self.unsynced)
                .with_aggregated_hold(self.aggregated_hold)
                .with_load_sleep(LOAD_SLEEP)
                .with_events(events.clone());
            let shared = Arc::new(shared);
            self.current.send_replace(Some(Arc::clone(&shared)));
            let lost = tokio::select! {
                why = collect(self.client.clone(), shared) => Some(why),
                // Whatever the turn is now, this one is over.
                _ = turn.changed() => None,
            };
            self.ended();
            if let Some(why) = lost {
                tracing::error!(why, "The collector forgets all that it knew, and begins anew");
                self.earlier.lock().resets += 1;
                sleep(RESTART_DELAY).await;
            }
        }
    }
}

fn bring_events(client: MetadataClient) -> events::SendEvent {
    Arc::new(move |event| {
        let client = client.clone();
        Box::pin(async move { client.record(event).await })
    })
}
