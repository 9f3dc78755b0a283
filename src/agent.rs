//! The composition root: builds all parts in the order of their dependencies, and starts the tasks.

use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    path::Path,
    pin::pin,
    sync::Arc,
    time::Duration,
};

use futures::{
    FutureExt as _,
    future::{FusedFuture as _, OptionFuture, select_all},
};
use jiff::Timestamp;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    config::Settings,
    memory,
    model::{problem::Problem, problems},
    node::host::Host,
    ops::{
        admin::{self, Admin, socket::SocketFile},
        metrics, service,
    },
    outside::Outside,
    tasks::{run_with_restarts, spawn},
};

mod cluster;
mod gc;
mod node_condition;
pub mod pods;

use gc::CollectorThread;
use pods::PodAgent;

/// Maximum time to release the collector's Lease when the agent stops.
const LEASE_RELEASE_TIMEOUT: Duration = Duration::from_secs(3);

/// Runs the agent of this node until SIGTERM, SIGINT or SIGHUP. A second signal stops it immediately: the next start
/// continues the terminations, but queued events are lost and the collector's Lease is not released.
///
/// # Errors
/// When it cannot start, or a part of it fails.
pub async fn run(settings: Settings) -> Result<(), Problem> {
    let (mut stop, mut second_stop) = (StopSignal::new()?, StopSignal::new()?);
    let _memory = spawn(run_with_restarts("memory", memory::trim_periodically));
    let stopped_twice = async {
        second_stop.received().await;
        second_stop.received().await;
    };
    tokio::select! {
        ended = run_on(Host::local()?, Outside::default(), settings, stop.received()) => ended,
        () = stopped_twice => {
            tracing::warn!("Second stop signal: exiting immediately; work in progress is resumed after the next start");
            Ok(())
        }
    }
}

/// Waits for one of the signals that stop the agent.
///
/// # Errors
/// When signals cannot be received.
pub async fn wait_for_stop_signal() -> Result<(), Problem> {
    StopSignal::new()?.received().await;
    Ok(())
}

/// Runs the agent of `host` until `stop` completes. Dropping the future is like a crash: nothing is cleaned up.
///
/// # Errors
/// When it cannot start, or a part of it fails.
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
        otlp,
        shutdown_timeout,
    } = settings;
    let dial = outside.dial.clone();
    let pods = pods.map(|settings| PodAgent::new(host, outside, settings, &node_name, &state_dir));
    let pods = OptionFuture::from(pods).await.transpose()?;
    let gc = gc.map(|gc| CollectorThread::new(gc, &node_name, dial)).transpose()?;
    let admin = Admin {
        node: node_name.clone(),
        since: Timestamp::now(),
        pods: pods.as_ref().map(|pods| pods.shared.clone()),
        gc: gc.as_ref().map(|gc| gc.shared.clone()),
    };
    let (servers, socket_file) = start_servers(Arc::new(admin), &socket, metrics).await?;
    let stop_collector = CancellationToken::new();
    let _stop_on_drop = stop_collector.clone().drop_guard();
    let mut gc = gc.map(|gc| gc.start(stop_collector.clone())).transpose()?;
    let result = {
        let mut stop = pin!(async {
            tokio::select! {
                biased;
                () = stop => Ok(()),
                // It exits by itself only after a panic.
                Some(_) = OptionFuture::from(gc.as_mut()) => {
                    Err(Problem::internal("the thread of the collector has ended"))
                }
            }
        });
        match pods {
            Some(pods) => pods.run(shutdown_timeout, otlp, &mut stop).await,
            None => {
                tracing::info!(node = node_name, "Agent is running without pod teardown");
                let stopped = stop.await;
                service::report_stopping();
                stopped
            }
        }
    };
    stop_collector.cancel();
    if let Some(gc) = gc.filter(|gc| !gc.is_terminated())
        && timeout(LEASE_RELEASE_TIMEOUT, gc).await.is_err()
    {
        tracing::warn!("Lease was not released; other collectors wait until it expires");
    }
    drop(servers);
    socket_file.remove();
    tracing::info!("Agent has stopped");
    result
}

/// Starts what serves the users of this node: the admin socket, the status for systemd, and metrics.
async fn start_servers(
    admin: Arc<Admin>,
    socket: &Path,
    metrics: Option<SocketAddr>,
) -> Result<(Vec<AbortOnDropHandle<()>>, SocketFile), Problem> {
    // Ports are checked before any work starts.
    let bind = |addr| metrics::listen(addr).map_err(|error| problems::metrics_addr(addr, &error));
    let metrics = metrics.map(bind).transpose()?;
    let (listener, file) = admin::socket::listen(socket).await.map_err(|error| {
        let is_taken = error.kind() == ErrorKind::AddrInUse;
        problems::admin_socket(socket, &error, is_taken)
    })?;
    let (served, listener) = (Arc::clone(&admin), Arc::new(listener));
    let serve = move || Arc::clone(&served).serve(Arc::clone(&listener));
    let reported = Arc::clone(&admin);
    let report = move || service::report_status(Arc::clone(&reported));
    let mut servers = vec![
        spawn(run_with_restarts("admin socket", serve)),
        spawn(run_with_restarts("service status", report)),
    ];
    servers.extend(metrics.map(Arc::new).map(|listener| {
        let serve = move || metrics::serve(Arc::clone(&admin), Arc::clone(&listener));
        spawn(run_with_restarts("metrics", serve))
    }));
    Ok((servers, file))
}

/// The signals that stop the agent.
struct StopSignal(Vec<Signal>);

// === impl StopSignal ===

impl StopSignal {
    fn new() -> Result<Self, Problem> {
        let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
        let signals = kinds.into_iter().map(signal).collect::<io::Result<_>>();
        let problem = |error| Problem::configuration(format!("signals: {error}"), "check the limits of this process");
        signals.map(Self).map_err(problem)
    }

    async fn received(&mut self) {
        select_all(self.0.iter_mut().map(|signal| signal.recv().boxed())).await;
    }
}
