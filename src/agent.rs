//! The composition root: builds everything in the order in which it is needed, and starts the tasks.

use std::{future::pending, io::ErrorKind, net::SocketAddr, sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::oneshot,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{
    config::Settings,
    memory,
    model::{
        problem::{Problem, ProblemKind},
        problems,
    },
    node::host::Host,
    ops::{
        admin::{self, Admin},
        metrics, service,
    },
    outside::Outside,
    tasks::{restarted, spawn},
};

mod gc;
mod node_volumes;
mod pod_api;
pub mod pods;

use gc::CollectorThread;
use pods::PodAgent;

/// For giving the collector's turn back when the agent stops.
const GIVE_BACK: Duration = Duration::from_secs(3);

/// Runs the agent of this machine until a signal tells it to stop; a second one ends it at once, which loses nothing.
pub async fn run(settings: Settings) -> Result<(), Problem> {
    let (mut stop, mut again) = (Stop::new()?, Stop::new()?);
    let _small = spawn(restarted("memory", memory::stay_small));
    let twice = async {
        again.told().await;
        again.told().await;
    };
    tokio::select! {
        ended = run_on(Host::local()?, Outside::default(), settings, stop.told()) => ended,
        () = twice => {
            tracing::warn!("Told to stop once more: what goes on is found and finished after the next start");
            Ok(())
        }
    }
}

/// Runs the agent of `host` until it is told to stop. Dropped, it leaves everything as it is, as in a crash.
pub async fn run_on(
    host: Host,
    outside: Outside,
    settings: Settings,
    stop: impl Future<Output = ()>,
) -> Result<(), Problem> {
    let Settings {
        node_name,
        pods,
        gc,
        state_dir,
        socket,
        metrics,
        shutdown_timeout,
        dry_run,
    } = settings;
    tokio::pin!(stop);
    let pods = match pods {
        Some(settings) => Some(PodAgent::new(host, outside, settings, &node_name, &state_dir, dry_run).await?),
        None => None,
    };
    let gc = gc
        .map(|settings| CollectorThread::new(settings, &node_name, dry_run))
        .transpose()?;
    // Before anything is begun.
    let metrics = metrics.map(bind).transpose()?;
    let mut place = None;
    let mut serving = Vec::new();
    let answers = Arc::new(Admin {
        node: node_name.clone(),
        since: Timestamp::now(),
        dry_run,
        pods: pods.as_ref().map(PodAgent::answers),
        gc: gc.as_ref().map(CollectorThread::answers),
    });
    if !dry_run {
        let (listener, at) = admin::listen(&socket).await.map_err(|error| {
            let is_taken = error.kind() == ErrorKind::AddrInUse;
            problems::admin_socket(&socket, &error, is_taken)
        })?;
        place = Some(at);
        let (answers, listener) = (Arc::clone(&answers), Arc::new(listener));
        let serve = move || Arc::clone(&answers).serve(Arc::clone(&listener));
        serving.push(spawn(restarted("admin socket", serve)));
    }
    let notified = Arc::clone(&answers);
    let notify = move || service::tell(Arc::clone(&notified));
    serving.push(spawn(restarted("notify", notify)));
    if let Some(listener) = metrics {
        let listener = Arc::new(listener);
        let serve = move || metrics::serve(Arc::clone(&answers), Arc::clone(&listener));
        serving.push(spawn(restarted("metrics", serve)));
    }
    let collected = CancellationToken::new();
    // Told also when this is dropped.
    let _collected = collected.clone().drop_guard();
    let mut gc = gc.map(|gc| gc.start(collected.clone())).transpose()?;
    let mut gc_ended = false;
    let mut ended = {
        let stop = async {
            tokio::select! {
                biased;
                () = stop.as_mut() => {}
                () = end_of(&mut gc) => gc_ended = true,
            }
        };
        tokio::pin!(stop);
        match pods {
            Some(pods) => pods.run(shutdown_timeout, &mut stop).await,
            None => {
                tracing::info!(node = node_name, dry_run, "Agent is running, and takes no pods down");
                stop.await;
                service::stopping();
                Ok(())
            }
        }
    };
    if gc_ended {
        ended = ended.and(Err(Problem {
            kind: ProblemKind::Internal,
            what: "the thread of the collector has ended".to_owned(),
            remedy: "start the agent again, and report this with its log".to_owned(),
        }));
    }
    collected.cancel();
    if let Some(gc) = gc.filter(|_| !gc_ended)
        && timeout(GIVE_BACK, gc).await.is_err()
    {
        tracing::warn!("The Lease could not be given back; others find out by themselves");
    }
    drop(serving);
    if let Some(place) = place {
        place.clear();
    }
    tracing::info!("Agent has stopped");
    ended
}

/// Returns when the thread of the collector has ended without a stop order: by a panic.
async fn end_of(gc: &mut Option<oneshot::Receiver<()>>) {
    match gc {
        Some(gc) => drop(gc.await),
        None => pending().await,
    }
}

fn bind(addr: SocketAddr) -> Result<TcpListener, Problem> {
    metrics::listen(addr).map_err(|error| problems::metrics_addr(addr, &error))
}

/// Being told to stop.
struct Stop {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    hang_up: tokio::signal::unix::Signal,
}

// === impl Stop ===

impl Stop {
    fn new() -> Result<Self, Problem> {
        let listen = |kind| {
            signal(kind).map_err(|error| {
                Problem::configuration(format!("signals: {error}"), "check the limits of this process")
            })
        };
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    async fn told(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            _ = self.hang_up.recv() => {}
        }
    }
}
