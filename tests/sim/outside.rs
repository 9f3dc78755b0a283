//! The outside of one run of the agent: connections over pipes and calls without a socket, all in one thread.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use pod_teardown::{
    api::Dial,
    node::{
        cri::{CriService, CriServiceError},
        threads::Blocking,
        unmounts::UnmountBackend,
    },
    outside::Outside,
};
use testbed::{apiserver::MemApiServer, scripted_cri::ScriptedCri};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tower::{BoxError, ServiceExt as _, service_fn, util::BoxCloneSyncService};

use crate::{disk::Disk, state::State};

/// The simulated API server, runtime, disk and kernel.
#[derive(Clone)]
pub struct Externals {
    pub state: State,
    pub home: Arc<MemApiServer>,
    pub other: Arc<MemApiServer>,
    pub cri: Arc<ScriptedCri>,
    pub disk: Disk,
}

/// A connection that can be cut.
struct Line {
    pipe: DuplexStream,
    disk: Disk,
    run: u64,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
}

// === impl Externals ===

impl Externals {
    /// For this run of the agent. After a crash all of it fails.
    pub fn outside(&self, run: u64) -> Outside {
        let (state, disk, cri) = (self.state.clone(), self.disk.clone(), Arc::clone(&self.cri));
        Outside {
            dial: Some(self.dial(run)),
            runtime: Some(self.runtime(run)),
            disk: Some(self.disk.opener(run)),
            unmounts: UnmountBackend::Simulated(Arc::new(move |path| {
                if disk.serves(run) {
                    let runs = cri.look(|world| {
                        let known = state.now();
                        let uid = known.uid_of(path);
                        let mut of_pod = world.containers.values().filter(|it| it.pod_uid == uid);
                        of_pod.find(|it| known.runs(it)).map(|it| it.id.clone())
                    });
                    state.now().unmount(path, runs.as_deref())
                } else {
                    Err(nix::errno::Errno::EIO)
                }
            })),
            // The node of a simulation has no systemd.
            kubelet_unit: None,
            blocking: Blocking::Inline,
        }
    }

    fn dial(&self, run: u64) -> Dial {
        let reach = self.clone();
        Arc::new(move |_| {
            let known = reach.state.now();
            if !reach.disk.serves(run) || known.faults.api_away {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let server = if known.faults.other_cluster {
                &reach.other
            } else {
                &reach.home
            };
            Ok(Box::new(Line {
                pipe: server.connector().connect(),
                disk: reach.disk.clone(),
                run,
                cut: Box::pin(known.line.clone().cancelled_owned()),
            }))
        })
    }

    fn runtime(&self, run: u64) -> CriService {
        let (state, disk, service) = (self.state.clone(), self.disk.clone(), self.cri.service());
        BoxCloneSyncService::new(service_fn(move |call| {
            let (state, disk, service) = (state.clone(), disk.clone(), service.clone());
            async move {
                let away = || CriServiceError::from(BoxError::from("the runtime is away"));
                let cut = {
                    let known = state.now();
                    if !disk.serves(run) || known.faults.runtime_away {
                        return Err(away());
                    }
                    known.wire.clone()
                };
                match cut.run_until_cancelled(service.oneshot(call)).await {
                    Some(Ok(answer)) => Ok(answer),
                    None => Err(away()),
                }
            }
        }))
    }
}

// === impl Line ===

impl Line {
    fn stands(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.cut.as_mut().poll(context) {
            Poll::Pending if self.disk.serves(self.run) => Ok(()),
            _ => Err(io::ErrorKind::ConnectionReset.into()),
        }
    }
}

impl AsyncRead for Line {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.stands(context)?;
        Pin::new(&mut self.pipe).poll_read(context, into)
    }
}

impl AsyncWrite for Line {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.stands(context)?;
        Pin::new(&mut self.pipe).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_shutdown(context)
    }
}
