//! World, script and log, and the execution of calls.

use std::future::pending;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};
use tonic::{Code, Status};

use super::call::{Kind, Seen};
use super::log::{Log, Logged};
use super::script::{Expected, Reply, Script};
use super::world::{Manners, World};

/// Read-only calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as the calls are")]
pub enum Read {
    Version,
    Status,
    RuntimeConfig,
    ListPodSandbox,
    PodSandboxStatus,
    ListContainers,
    ContainerStatus,
    GetContainerEvents,
}

/// Fault of a read-only call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// It fails.
    Error(Code, String),
    /// It is never answered.
    Hang,
    /// It is answered late.
    Late(Duration),
}

/// Decides the results of calls, instead of a script.
pub trait Director: Send + Sync {
    /// Of a changing call.
    fn effect(&self, seen: &Seen, world: &mut World) -> Expected;

    /// Of a call that reads `id`, or nothing in particular.
    fn read(&self, read: Read, id: &str, world: &World) -> Option<Fault>;

    /// A changing call was answered.
    fn answered(&self, seen: &Seen, ok: bool, world: &mut World);
}

/// State shared by all connections. Its lock is never held across an await.
pub(super) struct Stage {
    parts: Mutex<Parts>,
    director: Option<Box<dyn Director>>,
    /// Notified of every change.
    pub(super) changed: Notify,
    /// Calls with a trace context, and that.
    pub(super) traced: Mutex<Vec<(&'static str, String)>>,
}

#[derive(Debug)]
pub(super) struct Parts {
    pub(super) world: World,
    pub(super) script: Script,
    pub(super) log: Log,
    /// Call, ID of its target or empty for any, fault.
    pub(super) faults: Vec<(Read, String, Fault)>,
    /// Number of scripted calls in flight, except those that are never answered.
    pub(super) playing: usize,
}

/// Result of a changing call.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) exit_code: i32,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
}

/// A caller waits for a container's exit; if it is canceled, the stop continues alone.
struct Waits<'a> {
    stage: &'a Stage,
    id: &'a str,
    until_end: bool,
}

/// CRI-O's timeout for containers when their sandbox is stopped.
const SANDBOX_STOP: Duration = Duration::from_secs(10);

/// Counts a scripted call until it is answered or canceled.
struct Playing<'a>(&'a Stage);

impl Stage {
    pub(super) fn new(world: World, director: Option<Box<dyn Director>>) -> Self {
        let (script, log) = (Script::default(), Log::default());
        let parts = Parts {
            world,
            script,
            log,
            faults: Vec::new(),
            playing: 0,
        };
        Self {
            parts: Mutex::new(parts),
            director,
            changed: Notify::new(),
            traced: Mutex::default(),
        }
    }

    /// Everything, as it is at this moment.
    pub(super) fn now(&self) -> MutexGuard<'_, Parts> {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.world.settle(Instant::now());
        parts
    }

    fn came(&self, call: Logged) -> usize {
        let mut parts = self.now();
        let at = parts.world.age(Instant::now());
        parts.log.came(at, call)
    }

    fn answered<T>(&self, place: usize, answer: Result<T, Status>) -> Result<T, Status> {
        let text = match &answer {
            Ok(_) => "OK".to_owned(),
            Err(status) => format!("{:?} {:?}", status.code(), status.message()),
        };
        let mut parts = self.now();
        let at = parts.world.age(Instant::now());
        parts.log.answered(place, at, text);
        answer
    }

    /// A call that reads `id`, or nothing in particular.
    pub(super) async fn look<T>(
        &self,
        read: Read,
        name: &'static str,
        id: &str,
        look: impl FnOnce(&World) -> Result<T, Status>,
    ) -> Result<T, Status> {
        let place = self.came(Logged::Read(name, id.to_owned()));
        let fault_now = || match &self.director {
            Some(director) => director.read(read, id, &self.now().world),
            None => self.now().fault(read, id),
        };
        let mut fault = fault_now();
        if let Some(Fault::Late(delay)) = fault {
            sleep(delay).await;
            // The container may have exited meanwhile, so that its status cannot be read any more.
            fault = fault_now().filter(|fault| matches!(fault, Fault::Error(..)));
        }
        match fault {
            None | Some(Fault::Late(_)) => {}
            Some(Fault::Hang) => pending().await,
            Some(Fault::Error(code, message)) => return self.answered(place, Err(Status::new(code, message))),
        }
        let answer = look(&self.now().world);
        self.answered(place, answer)
    }

    /// A changing call, according to the script.
    pub(super) async fn play(&self, seen: Seen) -> Result<Outcome, Status> {
        let place = self.came(Logged::Effect(seen.clone()));
        let admitted = match &self.director {
            Some(director) => Ok(director.effect(&seen, &mut self.now().world)),
            None => self.now().script.admit(&seen),
        };
        self.changed.notify_waiters();
        let expected = match admitted {
            Ok(expected) => expected,
            Err(violation) => return self.answered(place, Err(Status::internal(violation))),
        };
        if expected.reply == Reply::Hang {
            pending::<()>().await;
        }
        self.now().playing += 1;
        let _playing = Playing(self);
        sleep(expected.delay).await;
        let answer = match expected.reply {
            Reply::Natural | Reply::Hang => self.perform(&seen).await,
            Reply::Pretend => Ok(Outcome::default()),
            Reply::Exit(exit_code) => Ok(Outcome {
                exit_code,
                ..Default::default()
            }),
            Reply::Refuse(code, message) => Err(Status::new(code, message)),
            Reply::DoButRefuse(code, message) => {
                self.perform(&seen).await.and_then(|_| Err(Status::new(code, message)))
            }
        };
        if let Some(director) = &self.director {
            director.answered(&seen, answer.is_ok(), &mut self.now().world);
        }
        self.answered(place, answer)
    }

    /// A changing call that teardown never needs.
    pub(super) fn refuse(&self, name: &'static str) -> Status {
        let place = self.came(Logged::Read(name, String::new()));
        let violation = format!("{name} was called, which no teardown needs");
        self.now().script.refuse(violation.clone());
        self.changed.notify_waiters();
        let answer: Result<(), _> = self.answered(place, Err(Status::unimplemented(violation)));
        answer.err().unwrap_or_else(|| Status::unimplemented(name))
    }

    async fn perform(&self, seen: &Seen) -> Result<Outcome, Status> {
        let now = Instant::now();
        match seen.kind {
            Kind::ExecSync => return self.exec(seen).await,
            Kind::StopContainer => {
                self.stop_container(&seen.id, seen.timeout.unwrap_or_default()).await?;
                self.has_shims(&seen.id)?;
            }
            Kind::StopPodSandbox => self.stop_sandbox(&seen.id, now).await?,
            Kind::RemoveContainer => {
                self.has_shims(&seen.id)?;
                self.now().world.remove_container(&seen.id);
            }
            Kind::RemovePodSandbox => {
                self.has_shims(&seen.id)?;
                self.now().world.remove_sandbox(&seen.id);
            }
        }
        self.changed.notify_waiters();
        Ok(Outcome::default())
    }

    /// Fails if this container, or one in this sandbox, has lost its shim: its exit would never be reported.
    fn has_shims(&self, id: &str) -> Result<(), Status> {
        match self.now().world.in_the_way(id) {
            None => Ok(()),
            Some(lost) => Err(Status::deadline_exceeded(format!(
                "an error occurs during waiting for container {:?} to be killed: context deadline exceeded",
                lost.id
            ))),
        }
    }

    /// As containerd: the signal once, then a wait for the exit, then SIGKILL. If the caller cancels before, the
    /// container has only got the signal. Stopping an unknown ID is an error in 1.6, removing one is not.
    async fn stop_container(&self, id: &str, timeout: Duration) -> Result<(), Status> {
        if self.now().world.manners == Manners::CriO {
            self.stop_detached(id, timeout).await;
            return Ok(());
        }
        if !self.now().world.containers.contains_key(id) {
            return Err(Status::not_found(format!("no container {id}")));
        }
        let kill_at = Instant::now() + timeout;
        self.now().world.signal(id, Instant::now());
        self.wait_for_end(id, kill_at).await;
        self.now().world.kill(id, Instant::now());
        Ok(())
    }

    /// As CRI-O: the stop continues if its caller cancels, a repeated one has no answer, and an unknown ID counts as
    /// stopped.
    async fn stop_detached(&self, id: &str, timeout: Duration) {
        let now = Instant::now();
        let has_answer = self.now().world.stop_by(id, now + timeout, now);
        self.changed.notify_waiters();
        if !has_answer {
            pending::<()>().await;
        }
        let mut waits = Waits {
            stage: self,
            id,
            until_end: false,
        };
        self.wait_for_end(id, now + timeout).await;
        waits.until_end = true;
    }

    async fn stop_sandbox(&self, id: &str, now: Instant) -> Result<(), Status> {
        if self.now().world.manners == Manners::CriO {
            return self.stop_sandbox_slowly(id, now).await;
        }
        let mut parts = self.now();
        if !parts.world.sandboxes.contains_key(id) {
            return Err(Status::not_found(format!("no sandbox {id}")));
        }
        if parts.world.in_the_way(id).is_some() {
            for inside in parts.world.inside(id) {
                parts.world.kill(&inside, now);
            }
            drop(parts);
            return self.has_shims(id);
        }
        parts.world.stop_sandbox(id, now);
        Ok(())
    }

    /// As CRI-O: the network first, then each container with ten seconds.
    async fn stop_sandbox_slowly(&self, id: &str, now: Instant) -> Result<(), Status> {
        let (network, inside) = {
            let mut parts = self.now();
            let sandbox = parts.world.sandboxes.get_mut(id);
            let network = sandbox.and_then(|sandbox| sandbox.network_error.take());
            (network, parts.world.inside(id))
        };
        if let Some(error) = network {
            return Err(Status::unknown(error));
        }
        for container in &inside {
            self.now().world.stop_by(container, now + SANDBOX_STOP, now);
        }
        self.changed.notify_waiters();
        for container in &inside {
            self.wait_for_end(container, now + SANDBOX_STOP).await;
        }
        self.has_shims(id)?;
        if let Some(sandbox) = self.now().world.sandboxes.get_mut(id) {
            sandbox.ready = false;
        }
        Ok(())
    }

    async fn exec(&self, seen: &Seen) -> Result<Outcome, Status> {
        let command = {
            let parts = self.now();
            let container = parts.world.containers.get(&seen.id);
            let container = container.ok_or_else(|| Status::not_found(format!("no container {}", seen.id)))?;
            if !parts.world.runs(&seen.id) {
                return Err(Status::unknown(format!("container {} does not run", seen.id)));
            }
            if parts.world.has_lost_shim(&seen.id) {
                return Err(Status::unavailable("ttrpc: closed"));
            }
            container.on_exec.clone()
        };
        let limit = seen
            .timeout
            .filter(|timeout| !timeout.is_zero())
            .unwrap_or(Duration::MAX);
        let started = Instant::now();
        self.wait_for_end(&seen.id, started + command.takes.min(limit)).await;
        if !self.now().world.runs(&seen.id) && started.elapsed() < command.takes.min(limit) {
            return Ok(Outcome {
                exit_code: 137,
                stdout: command.stdout,
                ..Default::default()
            });
        }
        if command.takes > limit && self.now().world.manners == Manners::CriO {
            return Ok(Outcome {
                exit_code: -1,
                stdout: command.stdout,
                stderr: b"command timed out".to_vec(),
            });
        }
        if command.takes > limit {
            return Err(Status::deadline_exceeded(format!("timeout {limit:?} exceeded")));
        }
        Ok(Outcome {
            exit_code: command.exit_code,
            stdout: command.stdout,
            ..Default::default()
        })
    }

    /// Waits until the container does not run any more, at most until `limit`.
    async fn wait_for_end(&self, id: &str, limit: Instant) {
        while Instant::now() < limit {
            let changed = self.changed.notified();
            let ending = {
                let parts = self.now();
                if !parts.world.runs(id) {
                    break;
                }
                let container = parts.world.containers.get(id);
                let ends = container.map(|it| [it.ending.map(|(at, _)| at), it.kill_at]);
                ends.into_iter().flatten().flatten().min()
            };
            let until = ending.map_or(limit, |at| at.min(limit));
            tokio::select! {
                biased;
                () = sleep_until(until) => {}
                // It may have exited meanwhile.
                () = changed => {}
            }
        }
        self.changed.notify_waiters();
    }
}

impl Parts {
    fn fault(&self, read: Read, id: &str) -> Option<Fault> {
        let name = self.world.containers.get(id).map_or("", |container| &container.name);
        let hits = |target: &String| target.is_empty() || target == id || target == name;
        let mut faults = self.faults.iter().rev();
        faults
            .find(|(of, target, _)| *of == read && hits(target))
            .map(|(_, _, fault)| fault.clone())
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        if !self.until_end
            && let Some(container) = self.stage.now().world.containers.get_mut(self.id)
        {
            container.abandoned = true;
        }
    }
}

impl Drop for Playing<'_> {
    fn drop(&mut self) {
        self.0.now().playing -= 1;
        self.0.changed.notify_waiters();
    }
}

impl std::fmt::Debug for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stage")
            .field("parts", &self.parts)
            .finish_non_exhaustive()
    }
}
