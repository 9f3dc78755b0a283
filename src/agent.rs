//! The composition root: builds everything in the order in which it is needed, and starts the tasks.

use std::{fs::DirBuilder, os::unix::fs::DirBuilderExt as _, path::Path, sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, watch},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    api::ApiClient,
    config::{Problem, ProblemKind, Settings},
    context::Context,
    counters::Counters,
    events::Events,
    guard::Guard,
    host::{Host, driver, same_mount_namespace},
    journal::{self, Journal},
    node::{
        cgroups::Cgroups,
        cri::Cri,
        identity::Identity,
        lock::PodsLock,
        mounts::Mounts,
        runtime::{self, RuntimeReport},
        turns::Turns,
    },
    ops::admin::{self, Admin},
    quiet::Quiet,
    watch::{PodSource, WatchReport},
    workers::{PodWorkers, WorkersHandle},
};

/// Changes that may wait while the map is busy; a longer queue would only hide that it is.
const CHANGES: usize = 64;

/// Runs the agent of this machine until a signal tells it to stop; a second one ends it at once, which loses nothing.
pub async fn run(settings: Settings) -> Result<(), Problem> {
    let (mut stop, mut again) = (Stop::new()?, Stop::new()?);
    let twice = async {
        again.told().await;
        again.told().await;
    };
    tokio::select! {
        ended = run_on(Host::this()?, settings, stop.told()) => ended,
        () = twice => {
            tracing::warn!("Told to stop once more: what goes on is found and finished after the next start");
            Ok(())
        }
    }
}

/// Runs the agent of `host` until it is told to stop. Dropped, it leaves everything as it is, as in a crash.
pub async fn run_on(host: Host, settings: Settings, stop: impl Future<Output = ()>) -> Result<(), Problem> {
    let Settings {
        kube,
        kubeconfig,
        node_name,
        cri_endpoint,
        kubelet_root,
        cgroup_driver,
        kubelet_cgroup_driver,
        cgroup_root,
        pod_logs_dir,
        state_dir,
        socket,
        shutdown_timeout,
        dry_run,
    } = settings;
    tokio::pin!(stop);

    // Only one agent may touch this node's pods; one that touches nothing is no other hand.
    let _lock = if dry_run {
        None
    } else {
        Some(lock(kubelet_root.pods(), &host.proc)?)
    };
    let journal = if dry_run {
        Journal::forgetful()
    } else {
        open_journal(&state_dir)?
    };
    let guard = Guard::new(Identity::read(&host.root), journal.clone(), host.proc.clone());
    guard.look(&kubelet_root, cri_endpoint.path()).await;
    let effects = guard.effects(dry_run);

    let counters = Arc::new(Counters::default());
    let (runtime_report, runtime_told) = watch::channel(RuntimeReport::default());
    let (watch_report, watch_told) = watch::channel(WatchReport::default());
    let (handle, questions) = WorkersHandle::new();
    let mut tasks = vec![spawn(
        guard
            .clone()
            .look_for_kubelet(kubelet_root.clone(), cri_endpoint.path().to_owned()),
    )];
    let mut place = None;
    if !dry_run {
        let (listener, at) = admin::listen(&socket).await.map_err(|error| {
            Problem::configuration(
                format!("--socket {}: {error}", socket.display()),
                "name a path where a socket can be made, and that nobody else uses",
            )
        })?;
        place = Some(at);
        let admin = Admin {
            node: node_name.clone(),
            since: Timestamp::now(),
            dry_run,
            runtime: runtime_told,
            guard: guard.clone(),
            watch: watch_told,
            workers: handle,
            journal: journal.clone(),
            counters: Arc::clone(&counters),
            collector: None,
        };
        tasks.push(spawn(admin.serve(listener)));
    }

    let cri = Cri::new(&cri_endpoint, effects.clone());
    let version = tokio::select! {
        version = runtime::reach(&cri, &cri_endpoint, &runtime_report) => version.map_err(|error| {
            Problem::configuration(
                format!("--cri-endpoint {cri_endpoint}: what listens there does not speak CRI: {error}"),
                "name the socket of containerd or CRI-O",
            )
        })?,
        () = &mut stop => {
            if let Some(place) = place {
                place.clear();
            }
            return Ok(());
        }
    };
    tasks.push(spawn(runtime::keep_asking(
        cri.clone(),
        cri_endpoint.clone(),
        runtime_report,
    )));
    same_mount_namespace(&host.proc, &cri_endpoint).await?;
    let cgroups = Cgroups::detect(&host.mountinfo, &host.cgroups).map_err(|error| {
        Problem::configuration(
            format!("cgroups: {error}"),
            "mount /sys/fs/cgroup, and let the agent see it",
        )
    })?;
    driver(
        cgroup_driver,
        &cri,
        kubelet_cgroup_driver.as_deref(),
        &cgroups,
        &cgroup_root,
    )
    .await?;

    let api = ApiClient::new(
        &kube,
        kubeconfig,
        effects.clone(),
        Some(guard.proof(&node_name)),
        &node_name,
    )
    .map_err(|error| {
        Problem::configuration(
            format!("--kubeconfig: {error}"),
            "check server, certificates and token in the kubeconfig",
        )
    })?;
    let (changes_in, changes) = mpsc::channel(CHANGES);
    let mut source = PodSource::new(
        api.clone(),
        guard.clone(),
        Arc::clone(&counters),
        changes_in,
        watch_report,
    );
    source.remember(journal.unfinished());
    let context = Arc::new(Context {
        events: Events::start(api.clone(), &node_name, Arc::clone(&counters)),
        api,
        cri,
        runtime_name: version.name.clone(),
        journal: journal.clone(),
        clock: host.clock,
        counters: Arc::clone(&counters),
        guard,
        effects,
        cgroups,
        cgroup_root,
        kubelet_root: kubelet_root.clone(),
        pod_logs_dir,
        mounts: Arc::new(Mounts::new(host.mountinfo, kubelet_root.pods())),
        reads: Turns::of(8),
        quiet: Quiet::default(),
        stopping: CancellationToken::new(),
    });
    let workers = PodWorkers::new(context, changes, questions);
    tracing::info!(
        node = node_name,
        runtime = version.name,
        runtime_version = version.version,
        dry_run,
        "Agent is running"
    );
    let source = spawn(source.run());
    let mut workers = spawn(workers.run(shutdown_timeout));

    let broken = tokio::select! {
        () = &mut stop => {
            tracing::info!(timeout = ?shutdown_timeout, "Told to stop; pods that are being taken down may come to an end");
            None
        }
        // By a panic, or because the watch ended by one. Whoever started the agent shall start it again.
        ended = &mut workers => Some(Problem {
            kind: ProblemKind::Internal,
            what: format!("the map of workers has ended: {ended:?}"),
            remedy: "start the agent again, and report this with its log".to_owned(),
        }),
    };
    source.abort();
    if !workers.is_finished()
        && timeout(shutdown_timeout + Duration::from_secs(1), &mut workers)
            .await
            .is_err()
    {
        tracing::error!("The map of workers does not end");
    }
    drop(tasks);
    if let Err(error) = journal.durable().await {
        tracing::error!(%error, "Journal is not on the disk");
    }
    if let Some(place) = place {
        place.clear();
    }
    tracing::info!("Agent has stopped");
    broken.map_or(Ok(()), Err)
}

/// A task that ends with whoever started it.
fn spawn<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> AbortOnDropHandle<T> {
    AbortOnDropHandle::new(tokio::spawn(task))
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

fn lock(pods: &Path, proc: &Path) -> Result<PodsLock, Problem> {
    PodsLock::acquire(pods, proc).map_err(|error| {
        Problem::configuration(
            error.to_string(),
            "stop the other one first, or give this one a --kubelet-root of its own",
        )
    })
}

fn open_journal(state_dir: &Path) -> Result<Journal, Problem> {
    let problem = |error: &dyn std::fmt::Display| {
        let file = state_dir.join(journal::FILE);
        Problem::configuration(
            format!("--state-dir {}: {error}", state_dir.display()),
            &format!(
                "let no other agent use it, and make it writable; if {} is damaged, move it away: pods that were ending \
                 then get their whole grace period and their hooks again, and this node counts as never seen",
                file.display()
            ),
        )
    };
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(state_dir)
        .map_err(|error| problem(&error))?;
    Journal::open(state_dir).map_err(|error| problem(&error))
}
