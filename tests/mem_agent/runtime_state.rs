//! A runtime that reports an exited container as running, and calls that hang.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
};

use crate::prelude::*;

const PID: i32 = 4242;

/// A real process in the node's procfs, as a child of the shim of a sandbox. It is also real to a signal.
struct ShimProcess {
    parent: Child,
    pid: i32,
}

impl ShimProcess {
    /// The child of the shim of this pod's sandbox.
    fn start(node: &Node, name: &str) -> Self {
        let started = Command::new("sh")
            .args(["-c", "sleep 100000 & echo $!; wait"])
            .stdout(Stdio::piped())
            .spawn();
        let mut parent = started.unwrap();
        let mut line = String::new();
        BufReader::new(parent.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let proc = node.path("proc");
        symlink(Path::new("/proc").join(line.trim()), proc.join(line.trim())).unwrap();
        let process = Self {
            parent,
            pid: line.trim().parse().unwrap(),
        };
        let stat = "7 (containerd-shim) T 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 100 0 0\n";
        fs::create_dir_all(process.shim(node)).unwrap();
        fs::write(process.shim(node).join("stat"), stat).unwrap();
        process.set_shim(node, "containerd-shim-runc-v2", &format!("sandbox-{}-0", uid(name)));
        process
    }

    /// Sets program and sandbox of the shim.
    fn set_shim(&self, node: &Node, program: &str, sandbox_id: &str) {
        let line = format!("/bin/{program}\0-namespace\0k8s.io\0-id\0{sandbox_id}\0");
        fs::write(self.shim(node).join("cmdline"), line).unwrap();
    }

    fn shim(&self, node: &Node) -> PathBuf {
        node.path("proc").join(self.parent.id().to_string())
    }

    /// Writes it into this cgroup, which is a plain directory.
    fn enter(&self, cgroup: &Path) {
        fs::create_dir_all(cgroup).unwrap();
        fs::write(cgroup.join("cgroup.procs"), format!("{}\n", self.pid)).unwrap();
    }

    fn kill(&mut self) {
        let pid = self.pid.to_string();
        assert!(Command::new("kill").args(["-KILL", &pid]).status().unwrap().success());
        self.parent.wait().unwrap();
    }

    /// Its parent exits after it.
    fn runs(&mut self) -> bool {
        self.parent.try_wait().unwrap().is_none()
    }
}

impl Drop for ShimProcess {
    fn drop(&mut self) {
        if self.runs() {
            Command::new("kill").arg(self.pid.to_string()).status().unwrap();
        }
        self.parent.wait().unwrap();
    }
}

impl Node {
    /// A process in this state (a letter of /proc/PID/stat), started so many seconds after boot.
    fn process(&self, pid: i32, state: &str, started: u64) {
        let dir = self.path("proc").join(pid.to_string());
        fs::create_dir_all(dir.join("task").join(pid.to_string())).unwrap();
        let ticks = started * 100;
        let stat = format!("{pid} (sleep) {state} 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {ticks} 0 0\n");
        fs::write(dir.join("stat"), &stat).unwrap();
        fs::write(dir.join("task").join(pid.to_string()).join("stat"), stat).unwrap();
    }

    pub async fn why(&self, name: &str) -> String {
        self.explanation(name).await.text()
    }
}

/// A pod whose container the runtime always reports as RUNNING, with a process in this state, if any.
async fn with_wrong_runtime(process: Option<i32>) -> Node {
    let mut node = Node::new().await;
    let mut object = pod("web", &plain());
    object["metadata"]["finalizers"] = json!(["test/hold"]);
    node.insert(object);
    node.pod_without_object("web", |pod| {
        let pod = pod.container("main").ignores_term();
        match process {
            Some(pid) => pod.process(pid),
            None => pod,
        }
    });
    node.start().await;
    node.always(expect(StopContainer::any()).error(Code::DeadlineExceeded, "context deadline exceeded"));
    node.always(expect(StopPodSandbox::any()).error(Code::DeadlineExceeded, "context deadline exceeded"));
    node
}

/// The uptime of this machine: real processes have started before that.
fn set_real_uptime(node: &mut Node) {
    let uptime = fs::read_to_string("/proc/uptime").unwrap();
    let seconds: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
    node.set_uptime(Duration::from_secs_f64(seconds) + secs(1));
}

/// A pod whose container's process runs, and which the runtime cannot stop.
async fn with_running_process(node: &mut Node) -> ShimProcess {
    let missing = "exec: \"runc\": executable file not found in $PATH";
    node.always(expect(StopContainer::any()).error(Code::Unknown, missing));
    node.always(expect(StopPodSandbox::any()).error(Code::Unknown, missing));
    with_process(node).await
}

/// The same with stops that the runtime never answers.
async fn with_hanging_stops(node: &mut Node) -> ShimProcess {
    node.always(expect(StopContainer::any()).hang());
    node.always(expect(StopPodSandbox::any()).hang());
    with_process(node).await
}

async fn with_process(node: &mut Node) -> ShimProcess {
    node.insert(pod("web", &plain()));
    let process = ShimProcess::start(node, "web");
    set_real_uptime(node);
    node.pod_without_object("web", |pod| pod.container("main").ignores_term().process(process.pid));
    node.start().await;
    process
}

async fn has_terminated(node: &Node) -> bool {
    let phase = node.get("web").await.unwrap()["status"]["phase"].clone();
    phase == "Failed" || phase == "Succeeded"
}

#[tokio::test(start_paused = true)]
async fn container_whose_process_exited_is_terminated_despite_the_runtime() {
    let node = with_wrong_runtime(Some(PID)).await;
    node.always(expect(RemoveContainer::any()).error(Code::DeadlineExceeded, "context deadline exceeded"));
    node.always(expect(RemovePodSandbox::any()).error(Code::DeadlineExceeded, "context deadline exceeded"));
    let began = Instant::now();
    node.delete("web", Some(20)).await;
    wait_until!(has_terminated(&node).await);
    assert_took(began, secs(50)..secs(120));
    let object = node.get("web").await.unwrap();
    let end = &object["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_fields(end, &json!({ "exitCode": 137, "reason": "ContainerStatusUnknown" }));
    // The kubelet writes 1970 if the runtime has no time, and the runtime has stopped nothing here.
    assert!(end["startedAt"].is_null() && end["finishedAt"].is_null(), "{end}");
    assert_eq!(object["status"]["phase"], "Failed");
    node.wait_status(|it| it.counters.deleted, 1).await;
    assert!(!node.pod_cgroup("web").exists());
    let mismatch = node.messages("web", "RuntimeStateMismatch").await;
    assert_eq!(mismatch.len(), 1, "{mismatch:?}");
    assert_has(&mismatch[0], &["main (process 4242)", "restart"]);
    let why = node.why("web").await;
    assert_has(&why, &["a restart of the container runtime corrects its state"]);
}

#[tokio::test(start_paused = true)]
async fn correction_of_a_wrong_runtime_survives_a_restart() {
    let mut node = with_wrong_runtime(Some(PID)).await;
    for pattern in [RemoveContainer::any(), RemovePodSandbox::any()] {
        node.always(expect(pattern).error(Code::DeadlineExceeded, "no"));
    }
    node.delete("web", Some(1)).await;
    node.wait_status(|it| it.counters.deleted, 1).await;
    node.restart().await;
    node.wait_blocked("web", "RemoveContainer").await;
    let blocked = node.trace("web").await.unwrap().blocked;
    assert!(blocked.iter().all(|it| it.step == Some(Step::Cleanup)), "{blocked:?}");
}

#[tokio::test(start_paused = true)]
async fn zombie_or_reused_pid_is_no_running_container() {
    // The uptime is 1000 s when the test begins.
    for (state, started) in [("Z", 100), ("S", 1002)] {
        let node = with_wrong_runtime(Some(PID)).await;
        node.cri.allow_everything();
        node.delete("web", Some(1)).await;
        sleep(secs(1)).await;
        node.process(PID, state, started);
        wait_until!(has_terminated(&node).await);
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_corrected_while_a_process_of_the_pod_runs() {
    let node = with_wrong_runtime(Some(PID)).await;
    node.process(PID, "D", 100);
    node.delete("web", Some(1)).await;
    sleep(secs(300)).await;
    assert_eq!(node.phase("web").await, "Running");
    let why = node.why("web").await;
    assert!(why.contains("container main runs as process 4242"), "{why}");
    // It has exited, and another process is in one of the pod's cgroups.
    fs::remove_dir_all(node.path("proc/4242")).unwrap();
    let other = node.pod_cgroup("web").join("container-uid-web-main-0");
    fs::create_dir_all(&other).unwrap();
    // A PID of another namespace, which cannot be killed.
    fs::write(other.join("cgroup.procs"), "0\n").unwrap();
    sleep(secs(300)).await;
    assert_eq!(node.phase("web").await, "Running");
    fs::remove_dir_all(&other).unwrap();
    node.cri.allow_everything();
    wait_until!(has_terminated(&node).await);
}

#[tokio::test(start_paused = true)]
async fn runtime_that_names_no_process_is_not_corrected() {
    let node = with_wrong_runtime(None).await;
    // Not even the processes in the pod's cgroups are killed: they may be those of the virtual machine.
    let mut process = ShimProcess::start(&node, "web");
    process.enter(&node.pod_cgroup("web").join("container-uid-web-main-0"));
    node.delete("web", Some(1)).await;
    sleep(secs(600)).await;
    assert!(process.runs());
    assert_eq!(node.phase("web").await, "Running");
    assert!(node.pod_cgroup("web").exists());
    let why = node.why("web").await;
    assert_has(&why, &["names no process of it", "the runtime's state counts"]);
    assert_eq!(node.count_events("web", "RuntimeStateMismatch").await, 0);
}

#[tokio::test(start_paused = true)]
async fn stop_beyond_its_timeout_is_reported_as_failure() {
    let node = Node::started_with("web", &plain(), |pod| pod.container("main")).await;
    node.cri.in_order([expect(StopContainer::of("main")).hang()]);
    node.delete("web", Some(20)).await;
    sleep(secs(25)).await;
    assert!(node.why("web").await.contains("nothing has failed"));
    sleep(secs(10)).await;
    let why = node.why("web").await;
    assert!(
        why.contains("StopContainer") && why.contains("no answer") && !why.contains("nothing has failed"),
        "{why}"
    );
    node.cri.allow_everything();
    node.wait_torn_down("web").await;
}

#[tokio::test(start_paused = true)]
async fn hanging_stop_of_an_exited_container_delays_little() {
    let node = Node::started_with("web", &plain(), |pod| pod.container("main").process(PID)).await;
    node.cri.in_order([expect(StopContainer::of("main")).hang()]);
    node.allow([RemoveContainer::any(), RemovePodSandbox::any()]);
    let began = Instant::now();
    node.delete("web", Some(20)).await;
    node.wait_deleted("web").await;
    assert_took(began, secs(50)..secs(65));
}

/// CRI-O keeps a sandbox without a process ready until StopPodSandbox. The agent removes the cgroup.
#[tokio::test(start_paused = true)]
async fn ready_sandbox_of_a_corrected_runtime_is_removed() {
    let mut node = Node::new().await;
    node.pod("web", &plain(), |pod| pod.container("main").process(PID));
    node.cri.change(|world| {
        world.manners = Manners::CriO;
        world.kill_shim("container-uid-web-main-0");
    });
    node.run().await;
    node.delete("web", Some(1)).await;
    node.wait_deleted("web").await;
    node.wait_blocked("web", "RemovePodSandbox").await;
    assert!(!node.pod_cgroup("web").exists());
    node.cri.change(|world| {
        world.restart_runtime(Instant::now());
        assert!(world.sandboxes.values().all(|sandbox| sandbox.ready));
    });
    node.wait_torn_down("web").await;
}

#[tokio::test(start_paused = true)]
async fn process_that_the_runtime_cannot_kill_is_killed_30_seconds_after_the_grace_period() {
    let mut node = Node::new().await;
    let mut process = with_running_process(&mut node).await;
    let began = Instant::now();
    node.delete("web", Some(20)).await;
    sleep(secs(40)).await;
    let why = node.why("web").await;
    let name = format!("process {} \"sleep\" in cgroup /", process.pid);
    for words in [
        &*format!("the runtime has not stopped the pod: container main runs as {name}"),
        "the runtime waits for shim",
        "(containerd-shim-runc-v2), which is stopped (state T)",
        "this agent sends it SIGKILL in ",
        "This agent sends SIGKILL to the pod's processes in ",
        "the shim of sandbox sandbox-uid-w, is stopped (state T)",
        "executable file not found in $PATH",
    ] {
        assert!(why.contains(words), "{words:?} is not in {why}");
    }
    sleep(secs(9)).await;
    assert!(process.runs(), "only 29 s after the grace period");
    wait_until!(!process.runs());
    assert!(began.elapsed() < secs(60), "{:?}", began.elapsed());
    node.always(expect(RemoveContainer::any()));
    node.always(expect(RemovePodSandbox::any()));
    let why = node.why("web").await;
    assert!(!why.contains("his agent sends"), "{why}");
    node.wait_deleted("web").await;
    assert_took(began, secs(80)..secs(120));
    let killed = node.messages("web", "ProcessesKilled").await;
    assert_eq!(killed.len(), 1, "{killed:?}");
    assert_has(
        &killed[0],
        &[&name, "killed with SIGKILL, since its stop has failed for 30s"],
    );
}

#[tokio::test(start_paused = true)]
async fn unknown_processes_are_killed_after_an_approval_although_the_runtime_stops_nothing() {
    let mut node = Node::new().await;
    let mut process = with_running_process(&mut node).await;
    let mut unknown = Bystander::in_cgroup(&node.pod_cgroup("web").join("0123456789abcdef"));
    node.delete("web", Some(1)).await;
    node.wait_blocked("web", "agent kills them: pod-teardown approve pod/default/web")
        .await;
    sleep(secs(100)).await;
    assert!(process.runs());
    approve(&node, "pod/default/web").await.unwrap();
    unknown.wait_killed().await;
    wait_until!(!process.runs());
}

#[tokio::test(start_paused = true)]
async fn runtime_that_works_again_is_noticed_within_seconds_while_a_kill_is_due() {
    let mut node = Node::new().await;
    let mut process = with_running_process(&mut node).await;
    node.delete("web", Some(100)).await;
    sleep(secs(112)).await;
    assert!(process.runs());
    // The runtime kills it.
    process.kill();
    node.cri
        .in_order([expect(StopContainer::of("main")), expect(StopPodSandbox::of("web"))]);
    node.always(expect(RemoveContainer::any()));
    node.always(expect(RemovePodSandbox::any()));
    let began = Instant::now();
    node.wait_torn_down("web").await;
    let took = began.elapsed();
    assert!(took < secs(10), "{took:?}");
    assert_eq!(node.count_events("web", "ProcessesKilled").await, 0);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_killed_while_a_kubelet_runs_and_that_time_does_not_count() {
    let mut node = Node::new().await;
    let mut process = with_running_process(&mut node).await;
    node.delete("web", Some(1)).await;
    sleep(secs(20)).await;
    let kubelet = kubelet(&node);
    sleep(secs(600)).await;
    assert!(process.runs());
    let why = node.why("web").await;
    assert!(!why.contains("his agent sends"), "{why}");
    fs::remove_dir_all(kubelet).unwrap();
    // Some 19 of the 30 seconds had passed.
    sleep(secs(9)).await;
    assert!(process.runs());
    wait_until!(!process.runs());
    node.crash().await;
}

#[tokio::test(start_paused = true)]
async fn process_is_killed_and_its_pod_goes_between_the_starts_of_a_kubelet_that_never_works() {
    for (hangs, pause) in [(false, 10), (true, 10), (true, 5), (true, 2)] {
        is_killed_between_starts(hangs, secs(pause)).await;
    }
}

/// The stops fail or hang, and a kubelet starts after each of these pauses.
async fn is_killed_between_starts(hangs: bool, pause: Duration) {
    let mut node = Node::new().await;
    let mut process = match hangs {
        false => with_running_process(&mut node).await,
        true => with_hanging_stops(&mut node).await,
    };
    node.always(expect(RemoveContainer::any()));
    node.always(expect(RemovePodSandbox::any()));
    node.delete("web", Some(1)).await;
    let began = Instant::now();
    let mut killed_after = None;
    while node.get("web").await.is_some() {
        assert!(
            began.elapsed() < secs(300),
            "pause {pause:?}, killed after {killed_after:?}"
        );
        sleep(pause).await;
        let kubelet = kubelet(&node);
        sleep(secs(1)).await;
        fs::remove_dir_all(kubelet).unwrap();
        if !process.runs() {
            killed_after.get_or_insert_with(|| began.elapsed());
        }
    }
    assert!(killed_after.is_some_and(|after| after > secs(30)), "{killed_after:?}");
}

#[tokio::test(start_paused = true)]
async fn process_that_is_not_proven_to_be_the_pods_is_named_and_neither_killed_nor_waited_for() {
    let mut node = Node::new().await;
    let mut process = with_running_process(&mut node).await;
    // As if its PID were reused.
    process.set_shim(&node, "containerd-shim-runc-v2", "sandbox-of-another-pod");
    node.delete("web", Some(1)).await;
    sleep(secs(300)).await;
    assert!(process.runs());
    let why = node.why("web").await;
    let words = format!("container main runs as process {} \"sleep\" in cgroup ", process.pid);
    assert!(why.contains(&words) && why.contains("does not kill that"), "{why}");
    assert!(!why.contains("his agent sends"), "{why}");
    assert_eq!(node.phase("web").await, "Running");
    // The runtime is restarted, and corrects its state.
    node.cri.change(|world| world.will_end("main", Instant::now(), 137));
    node.cri.in_order([expect(StopPodSandbox::of("web"))]);
    node.always(expect(RemoveContainer::any()));
    node.always(expect(RemovePodSandbox::any()));
    node.wait_torn_down("web").await;
    assert!(process.runs());
}

#[tokio::test(start_paused = true)]
async fn process_below_the_shim_of_a_virtual_machine_is_not_killed() {
    let mut node = Node::new().await;
    let mut process = with_running_process(&mut node).await;
    process.set_shim(&node, "containerd-shim-kata-v2", "sandbox-uid-web-0");
    node.delete("web", Some(1)).await;
    sleep(secs(300)).await;
    assert!(process.runs());
    let why = node.why("web").await;
    assert!(why.contains("may be a virtual machine"), "{why}");
    node.crash().await;
}

/// CRI-O has no process in its sandboxes.
#[tokio::test(start_paused = true)]
async fn process_of_a_sandbox_is_named_and_killed_when_all_containers_have_exited() {
    let mut node = Node::new().await;
    node.insert(pod("web", &plain()));
    let mut pause = ShimProcess::start(&node, "web");
    set_real_uptime(&mut node);
    node.pod_without_object("web", |pod| pod.sandbox_process(pause.pid).container("main"));
    node.cri.change(|world| world.manners = Manners::Containerd);
    node.always(expect(StopContainer::any()));
    node.always(expect(StopPodSandbox::any()).hang());
    node.start().await;
    node.delete("web", Some(1)).await;
    sleep(secs(20)).await;
    let why = node.why("web").await;
    let words = format!("is not stopped: its process {} \"sleep\" in cgroup /", pause.pid);
    assert!(
        why.contains(&words) && !why.contains("all containers have exited"),
        "{why}"
    );
    assert!(why.contains("this agent sends it SIGKILL in "), "{why}");
    wait_until!(!pause.runs());
    node.always(expect(RemoveContainer::any()));
    node.always(expect(RemovePodSandbox::any()));
    // The runtime still reports the sandbox as ready: the kernel's state counts.
    node.wait_deleted("web").await;
    assert_eq!(node.count_events("web", "RuntimeStateMismatch").await, 1);
}
