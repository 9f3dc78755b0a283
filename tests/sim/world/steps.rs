//! Executes the steps of a plan.

use std::{fs, sync::Arc, time::Duration};

use pod_teardown::{model::termination::Eviction, workers::stop::PodStop};
use testbed::{
    apiserver::faults::{Action as ApiAction, Fault},
    scripted_cri::{SimContainer, SimState},
};
use tokio::time::{Instant, sleep_until};

use super::{FaultEnd, Sim};
use crate::{
    plan::{Action, ApiFault, Cause, Shims},
    pods::{Kind, NODE},
    state::{Asker, PodHistory, is_alive},
};

impl Sim<'_> {
    pub(super) async fn steps(&mut self) {
        let begun = Instant::now();
        let died = Arc::clone(&self.reach.state.now().agent.died);
        for step in &self.plan.steps {
            self.wait(begun + step.at, &died).await;
            self.reach.state.now().log(format_args!("STEP {:?}", step.what));
            self.step(&step.what).await;
            self.reach.state.now().check_files();
        }
    }

    /// Waits until `at`. Faults may end and the agent may crash meanwhile.
    async fn wait(&mut self, at: Instant, died: &tokio::sync::Notify) {
        loop {
            let next = self
                .over
                .iter()
                .map(|(at, _)| *at)
                .min()
                .map_or(at, |over| over.min(at));
            tokio::select! {
                biased;
                () = died.notified() => self.crash(Duration::from_secs(2)).await,
                () = sleep_until(next) => {}
            }
            self.end_faults(Instant::now());
            if Instant::now() >= at {
                return;
            }
        }
    }

    pub(super) fn until(&mut self, lasts: Duration, over: FaultEnd) {
        self.over.retain(|(_, other)| *other != over);
        self.over.push((Instant::now() + lasts, over));
    }

    pub(super) fn end_faults(&mut self, now: Instant) {
        let (due, rest) = std::mem::take(&mut self.over)
            .into_iter()
            .partition(|(at, _)| *at <= now);
        self.over = rest;
        for (_, over) in due {
            let mut known = self.reach.state.now();
            match over {
                FaultEnd::ApiAway => known.faults.api_away = false,
                FaultEnd::OtherCluster => {
                    known.faults.other_cluster = false;
                    std::mem::take(&mut known.line).cancel();
                }
                FaultEnd::Look => known.faults.reads = None,
                FaultEnd::RuntimeAway => known.faults.runtime_away = false,
                FaultEnd::Children => known.children.clear(),
                FaultEnd::RuntimeRestarts => {
                    known.faults.runtime_away = false;
                    drop(known);
                    self.restart_runtime();
                }
                FaultEnd::Kubelet => {
                    known.kubelet = None;
                    drop(known);
                    self.kubelet(false);
                }
                FaultEnd::Disk => self.reach.disk.fail(false),
                FaultEnd::Down => {
                    drop(known);
                    self.start();
                }
            }
        }
    }

    fn kubelet(&self, there: bool) {
        let dir = self.machine.node.join("proc/77");
        if there {
            fs::create_dir_all(dir.join("task/77")).unwrap();
            fs::write(dir.join("cmdline"), "kubelet\0").unwrap();
            fs::write(dir.join("comm"), "kubelet\n").unwrap();
        } else {
            // Renamed first, because a directory is not removed atomically.
            fs::rename(&dir, self.machine.node.join("proc/gone")).ok();
            fs::remove_file(self.machine.node.join("proc/gone/comm")).ok();
            fs::remove_file(self.machine.node.join("proc/gone/cmdline")).ok();
            fs::remove_dir(self.machine.node.join("proc/gone/task/77")).ok();
            fs::remove_dir(self.machine.node.join("proc/gone/task")).ok();
            fs::remove_dir(self.machine.node.join("proc/gone")).ok();
        }
    }

    async fn step(&mut self, what: &Action) {
        let state = self.reach.state.clone();
        match *what {
            Action::Delete(pod, grace) => self.delete(pod, grace).await,
            Action::Stop(pod, grace, cause) => self.request_stop(pod, grace, cause),
            Action::Vanish(pod) => self.vanish(pod).await,
            Action::Replace(pod) => {
                if self.plan.pods[pod].kind != Kind::Mirror {
                    self.vanish(pod).await;
                    self.made[pod] += 1;
                    self.make(pod);
                }
            }
            Action::Release(pod) => self.release(pod).await,
            Action::Api(fault, verb, times) => self.faults(fault, verb, times),
            Action::ApiAway(lasts) => {
                state.now().faults.api_away = true;
                std::mem::take(&mut state.now().line).cancel();
                self.until(lasts, FaultEnd::ApiAway);
            }
            // An agent without a recorded Node accepts the first one, even of another cluster.
            Action::OtherCluster(_) if !self.has_recorded_node() => {}
            Action::OtherCluster(lasts) => {
                state.now().faults.other_cluster = true;
                std::mem::take(&mut state.now().line).cancel();
                self.until(lasts, FaultEnd::OtherCluster);
            }
            Action::Call(fault, times) => state.now().faults.calls = vec![fault; times],
            Action::Look(fault, lasts) => {
                state.now().faults.reads = Some(fault);
                self.until(lasts, FaultEnd::Look);
            }
            Action::RuntimeAway(lasts) => {
                state.now().faults.runtime_away = true;
                std::mem::take(&mut state.now().wire).cancel();
                self.until(lasts, FaultEnd::RuntimeAway);
            }
            Action::Restart(pod) => self.restart(pod),
            Action::Forget(pod) => self.forget(pod),
            Action::Unknown(pod) => self.unknown(pod),
            Action::ShimDies(pod, shims, rest) => {
                self.kill_shims(pod, shims, rest.is_some());
                if let Some(rest) = rest {
                    self.until(rest, FaultEnd::Children);
                }
            }
            Action::RuntimeRestarts(down) => {
                state.now().faults.runtime_away = true;
                std::mem::take(&mut state.now().wire).cancel();
                self.until(down, FaultEnd::RuntimeRestarts);
            }
            Action::Busy(times) => state.now().faults.busy = times,
            Action::Kubelet(lasts) => {
                self.kubelet(true);
                let mut known = state.now();
                known.kubelet.get_or_insert_with(Instant::now);
                known.pods.values_mut().for_each(PodHistory::kubelet_starts);
                drop(known);
                self.until(lasts, FaultEnd::Kubelet);
            }
            Action::DiskFails(lasts) => {
                self.reach.disk.fail(true);
                self.until(lasts, FaultEnd::Disk);
            }
            Action::Crash(turns, down) => {
                for _ in 0..turns {
                    tokio::task::yield_now().await;
                }
                self.crash(down).await;
            }
            Action::CrashAtEffect(after) => state.now().agent.dies_in = Some(after),
            Action::CutAtWrite(after) => {
                self.check_disk();
                self.reach.disk.cut(Some(after));
            }
            Action::Reboot(down) => self.reboot(down).await,
            Action::StopAgent(down) => {
                self.check_disk();
                if let Some(agent) = self.agent.take() {
                    let run = state.now().agent.run;
                    let why = agent.stop().await;
                    let served = self.reach.disk.serves(run);
                    if let Some(why) = why.filter(|why| served && !Self::lacks_disk(why)) {
                        state
                            .now()
                            .broken(10, format_args!("the agent did not stop well: {why}"));
                    }
                    self.has_ended(down);
                }
            }
        }
    }

    fn faults(&self, faults: ApiFault, verb: Option<&'static str>, times: u32) {
        let action = match faults {
            ApiFault::Refuse => ApiAction::Refuse,
            ApiFault::LoseResponse => ApiAction::LoseResponse,
            ApiFault::Delay(millis) => ApiAction::Delay { millis },
            ApiFault::Status(code) => ApiAction::Status {
                code,
                retry_after: (code == 429).then_some(3),
            },
            ApiFault::CutWatch => ApiAction::CutWatch,
            ApiFault::StallWatch => ApiAction::StallWatch,
        };
        let mut fault = Fault::new(action).user(&format!("system:node:{NODE}")).times(times);
        if let Some(verb) = verb.filter(|_| !matches!(faults, ApiFault::CutWatch | ApiFault::StallWatch)) {
            fault = fault.verb(verb);
        }
        self.reach.home.faults().inject(fault);
    }

    /// Restarts a container, as a kubelet may have done just before it went down.
    fn restart(&self, pod: usize) {
        let uid = self.uid(pod);
        self.reach.cri.change(|world| {
            let of_pod = |it: &&SimContainer| it.pod_uid == uid;
            let runs = world
                .containers
                .values()
                .filter(of_pod)
                .any(|it| it.state == SimState::Running && !it.shim_died);
            let ended = world
                .containers
                .values()
                .filter(of_pod)
                .find(|it| it.state == SimState::Exited)
                .cloned();
            if let (true, Some(ended)) = (runs, ended) {
                // A restarted container is a new one.
                let mut names = (1..).map(|time| (ended.attempt + 10 * time, "-again".repeat(time as usize)));
                let (attempt, id) = names
                    .find_map(|(attempt, again)| {
                        let id = format!("{}{again}", ended.id);
                        (!world.containers.contains_key(&id)).then_some((attempt, id))
                    })
                    .unwrap();
                let again = SimContainer {
                    id: id.clone(),
                    attempt,
                    state: SimState::Running,
                    created_at: ended.finished_at + 1,
                    started_at: ended.finished_at + 1,
                    finished_at: 0,
                    signalled: false,
                    abandoned: false,
                    pid: None,
                    ..ended
                };
                world.containers.insert(id, again);
                if let Some(history) = self.reach.state.now().pods.get_mut(&uid) {
                    history.end_unknown = self.plan.pods[pod].ends_unread();
                }
            }
        });
        self.give_processes();
    }

    /// Kills the shims of all running containers of the pod, or that of the first.
    fn kill_shims(&self, pod: usize, shims: Shims, have_children: bool) {
        let uid = self.uid(pod);
        let plan = &self.plan.pods[pod];
        self.reach.cri.change(|world| {
            let running = world
                .containers
                .values()
                .filter(|it| it.pod_uid == uid && is_alive(it.state));
            let many = if shims == Shims::All { usize::MAX } else { 1 };
            // The newest instance has the exit status of the container.
            let lost = running.take(many).map(|it| {
                let mut others = world
                    .containers
                    .values()
                    .filter(|other| other.pod_uid == uid && other.name == it.name);
                let is_newest = others.all(|other| other.created_at <= it.created_at);
                (it.id.clone(), it.name.clone(), is_newest)
            });
            let lost: Vec<_> = lost.collect();
            let mut known = self.reach.state.now();
            for (id, name, is_newest) in lost {
                world.kill_shim(&id);
                known.met.shim_died = true;
                if let Some(history) = known.pods.get_mut(&uid) {
                    history.shim_died = true;
                    let mut numbers = 0..plan.containers.len();
                    let decides = numbers.any(|number| name == format!("c{number}") && plan.decides(number));
                    history.end_unknown |= decides && is_newest && plan.kind == Kind::Plain;
                }
                if have_children {
                    known.children.insert(id);
                }
            }
            known.show_processes(world);
        });
    }

    /// The runtime detects dead shims. Returns whether there were any.
    pub(super) fn restart_runtime(&self) -> bool {
        self.reach.cri.change(|world| {
            let any = world.containers.values().any(|it| it.shim_died);
            world.restart_runtime(Instant::now());
            let mut known = self.reach.state.now();
            if any {
                known.log("the runtime restarts and detects dead shims");
            }
            known.children.clear();
            known.show_processes(world);
            any
        })
    }

    fn forget(&self, pod: usize) {
        let uid = self.uid(pod);
        self.reach.cri.change(|world| {
            world
                .containers
                .retain(|_, it| it.pod_uid != uid || it.state != SimState::Exited);
        });
    }

    fn unknown(&self, pod: usize) {
        let uid = self.uid(pod);
        self.reach.cri.change(|world| {
            let mut containers = world.containers.values_mut();
            if let Some(one) = containers.find(|it| it.pod_uid == uid && it.state == SimState::Running) {
                one.state = SimState::Unknown;
            }
        });
    }

    /// Sends a stop request to the agent without waiting. A crashed agent may continue it later.
    fn request_stop(&self, pod: usize, grace: Option<i64>, cause: Cause) {
        let answers = self.agent.as_ref().map(|agent| Arc::clone(&agent.answers));
        let asked = answers.and_then(|answers| {
            let answers = answers.lock().unwrap();
            answers.as_ref().map(|it| (it.workers.clone(), it.journal.clone()))
        });
        let Some((workers, journal)) = asked else { return };
        let uid = self.uid(pod);
        let stop = PodStop {
            namespace: "default".to_owned(),
            name: Self::name(pod),
            uid: Some(uid.clone()),
            grace,
            eviction: (cause == Cause::Eviction).then(|| Eviction {
                reason: "Evicted".to_owned(),
                message: "by the simulation".to_owned(),
                disruption: None,
            }),
        };
        let state = self.reach.state.clone();
        let ask = {
            let mut known = state.now();
            let Some(history) = known.pods.get_mut(&uid) else {
                return;
            };
            let grace = grace.map_or(history.spec_grace, |grace| Duration::from_secs(grace.unsigned_abs()));
            history.ask(Asker::Node, grace)
        };
        tokio::spawn(async move {
            let answer = workers.ask(|pods| pods.stop_pod(stop)).await;
            let promised = matches!(answer, Some(Ok(_))) && journal.durable().await.is_ok();
            let mut known = state.now();
            known.log(format_args!(
                "asked for the end of {uid}: {answer:?}, on the disk: {promised}"
            ));
            let beside_a_kubelet = known.kubelet.is_some();
            let Some(history) = known.pods.get_mut(&uid) else {
                return;
            };
            history.granted |= promised;
            if beside_a_kubelet {
                history.kubelet_starts();
            }
            if let Some(Err(_)) = answer {
                history.refuse(ask);
            }
        });
    }

    async fn reboot(&mut self, down: Duration) {
        self.check_disk();
        if let Some(agent) = self.agent.take() {
            agent.crash().await;
        }
        self.reach.cri.change(|world| {
            for sandbox in world.sandboxes.values_mut() {
                sandbox.ready = false;
            }
            for container in world.containers.values_mut() {
                if matches!(container.state, SimState::Running | SimState::Unknown) {
                    container.state = SimState::Exited;
                    container.exit_code = 255;
                    container.finished_at = container.started_at + 1;
                    container.shim_died = false;
                }
            }
            let mut known = self.reach.state.now();
            known.children.clear();
            known.show_processes(world);
        });
        let uids: Vec<_> = {
            let mut known = self.reach.state.now();
            known.unmount_everything();
            known.pods.values_mut().for_each(|history| history.rebooted = true);
            known.pods.keys().cloned().collect()
        };
        for uid in uids {
            fs::remove_dir(self.machine.node.join(format!("cgroup/kubepods/besteffort/pod{uid}"))).ok();
        }
        self.machine.reboot();
        self.has_ended(down);
    }
}
