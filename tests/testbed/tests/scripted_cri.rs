//! The scripted CRI keeps its word: it lets no wrong call pass, and does the right ones as containerd does.

use std::time::Duration;

use futures::FutureExt;
use k8s_cri::v1;
use k8s_cri::v1::runtime_service_client::RuntimeServiceClient;
use testbed::scripted_cri::{
    ExecSync, Fault, Read, RemoveContainer, RemovePodSandbox, ScriptedCri, SimState, StopContainer, StopPodSandbox,
    World, expect,
};
use tokio::time::{Instant, sleep, timeout};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A client that speaks plain CRI.
#[derive(Clone)]
struct Client(RuntimeServiceClient<Channel>);

impl Client {
    fn of(cri: &ScriptedCri) -> Self {
        Self(RuntimeServiceClient::new(
            Endpoint::from_shared(cri.endpoint())
                .expect("an endpoint")
                .connect_lazy(),
        ))
    }

    async fn version(&self) -> Result<String, Status> {
        let answer = self.0.clone().version(v1::VersionRequest::default()).await?;
        Ok(answer.into_inner().runtime_name)
    }

    async fn stop(&self, id: &str, timeout: i64) -> Result<(), Status> {
        let request = v1::StopContainerRequest {
            container_id: id.to_owned(),
            timeout,
        };
        self.0.clone().stop_container(request).await.map(|_| ())
    }

    async fn exec(&self, id: &str, command: &[&str], timeout: i64) -> Result<i32, Status> {
        let cmd = command.iter().map(|&word| word.to_owned()).collect();
        let request = v1::ExecSyncRequest {
            container_id: id.to_owned(),
            cmd,
            timeout,
        };
        Ok(self.0.clone().exec_sync(request).await?.into_inner().exit_code)
    }

    async fn stop_sandbox(&self, id: &str) -> Result<(), Status> {
        let request = v1::StopPodSandboxRequest {
            pod_sandbox_id: id.to_owned(),
        };
        self.0.clone().stop_pod_sandbox(request).await.map(|_| ())
    }

    async fn remove(&self, id: &str) -> Result<(), Status> {
        let request = v1::RemoveContainerRequest {
            container_id: id.to_owned(),
        };
        self.0.clone().remove_container(request).await.map(|_| ())
    }

    async fn remove_sandbox(&self, id: &str) -> Result<(), Status> {
        let request = v1::RemovePodSandboxRequest {
            pod_sandbox_id: id.to_owned(),
        };
        self.0.clone().remove_pod_sandbox(request).await.map(|_| ())
    }

    async fn status(&self, id: &str) -> Result<v1::ContainerStatus, Status> {
        let request = v1::ContainerStatusRequest {
            container_id: id.to_owned(),
            verbose: false,
        };
        Ok(self
            .0
            .clone()
            .container_status(request)
            .await?
            .into_inner()
            .status
            .expect("a status"))
    }

    async fn ids(&self, filter: v1::ContainerFilter) -> Vec<String> {
        let request = v1::ListContainersRequest { filter: Some(filter) };
        let answer = self
            .0
            .clone()
            .list_containers(request)
            .await
            .expect("a list")
            .into_inner();
        answer.containers.into_iter().map(|container| container.id).collect()
    }
}

const MAIN: &str = "container-u1-main-0";
const SIDE: &str = "container-u1-side-0";
const SANDBOX: &str = "sandbox-u1-0";

fn two_containers() -> World {
    let mut world = World::new();
    let pod = world
        .pod("shop", "web-0", "u1")
        .container("main")
        .ends_after_term(secs(2), 3);
    pod.container("side").ignores_term();
    world
}

async fn start() -> (ScriptedCri, Client) {
    let cri = ScriptedCri::start(two_containers()).await;
    let client = Client::of(&cri);
    (cri, client)
}

#[tokio::test(start_paused = true)]
async fn no_virtual_time_passes_while_bytes_are_on_the_way() {
    let (cri, client) = start().await;
    let begun = Instant::now();
    for _ in 0..100 {
        timeout(Duration::from_millis(1), client.version())
            .await
            .expect("in no time")
            .unwrap();
    }
    let many = (0..100).map(|_| client.status(MAIN));
    timeout(Duration::from_millis(1), futures::future::join_all(many))
        .await
        .expect("in no time");
    assert_eq!(begun.elapsed(), Duration::ZERO);
    cri.finished().await;
}

#[tokio::test(start_paused = true)]
async fn no_virtual_time_passes_for_a_client_in_a_task_of_its_own() {
    let (cri, client) = start().await;
    let task = tokio::spawn(async move {
        sleep(secs(5)).await;
        let begun = Instant::now();
        for _ in 0..10 {
            client.version().await.unwrap();
        }
        begun.elapsed()
    });
    assert_eq!(timeout(secs(3600), task).await.unwrap().unwrap(), Duration::ZERO);
    cri.finished().await;
}

#[tokio::test(start_paused = true)]
async fn a_large_answer_takes_no_virtual_time_either() {
    let mut world = World::new();
    let mut pod = world
        .pod("shop", "web-0", "u1")
        .annotation("large", &"x".repeat(1 << 20));
    for _ in 0..500 {
        pod = pod.container("main");
    }
    let cri = ScriptedCri::start(world).await;
    let client = Client::of(&cri);
    let begun = Instant::now();
    let list = timeout(secs(1), client.ids(v1::ContainerFilter::default()))
        .await
        .unwrap();
    let mut plain = client.0.clone();
    let sandboxes = timeout(secs(1), plain.list_pod_sandbox(v1::ListPodSandboxRequest::default()))
        .await
        .unwrap();
    assert_eq!((list.len(), sandboxes.unwrap().into_inner().items.len()), (500, 1));
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_container_ends_some_time_after_its_signal() {
    let (cri, client) = start().await;
    cri.in_order([expect(StopContainer::of("main").timeout(secs(30)))]);
    let begun = Instant::now();
    client.stop(MAIN, 30).await.unwrap();
    assert_eq!(begun.elapsed(), secs(2));
    let status = client.status(MAIN).await.unwrap();
    assert_eq!(
        (status.state(), status.exit_code),
        (v1::ContainerState::ContainerExited, 3)
    );
    assert_eq!(
        status.finished_at - status.created_at,
        60_000_000_000,
        "created 58 s before, ended 2 s after"
    );
    cri.finished().await;
}

#[tokio::test(start_paused = true)]
async fn a_container_that_ignores_its_signal_is_killed_at_the_timeout() {
    let (cri, client) = start().await;
    cri.in_order([expect(StopContainer::of(SIDE))]);
    let begun = Instant::now();
    client.stop(SIDE, 7).await.unwrap();
    assert_eq!(begun.elapsed(), secs(7));
    assert_eq!(client.status(SIDE).await.unwrap().exit_code, 137);
    cri.finished().await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_is_given_up_leaves_the_container_with_the_signal_alone() {
    let (cri, client) = start().await;
    cri.in_order([expect(StopContainer::of("side")), expect(StopContainer::of("main"))]);
    timeout(secs(1), client.stop(SIDE, 30)).await.unwrap_err();
    timeout(secs(1), client.stop(MAIN, 30)).await.unwrap_err();
    sleep(secs(100)).await;
    assert_eq!(
        client.status(SIDE).await.unwrap().state(),
        v1::ContainerState::ContainerRunning
    );
    assert_eq!(client.status(MAIN).await.unwrap().exit_code, 3);
    cri.finished().await;
}

#[tokio::test(start_paused = true)]
async fn a_second_stop_with_less_time_ends_the_first_one_too() {
    let (cri, client) = start().await;
    cri.in_order([expect(StopContainer::of("side")), expect(StopContainer::of("side"))]);
    let begun = Instant::now();
    let (first, second) = futures::join!(client.stop(SIDE, 30), async {
        sleep(secs(4)).await;
        client.stop(SIDE, 2).await
    });
    first.unwrap();
    second.unwrap();
    assert_eq!(begun.elapsed(), secs(6));
    cri.finished().await;
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_sandbox_is_the_end_of_what_runs_in_it() {
    let (cri, client) = start().await;
    cri.in_order([
        expect(StopPodSandbox::of("web-0")).then(secs(3)),
        expect(RemovePodSandbox::of("u1")),
    ]);
    let begun = Instant::now();
    client.stop_sandbox(SANDBOX).await.unwrap();
    assert_eq!(begun.elapsed(), secs(3));
    assert_eq!(client.status(MAIN).await.unwrap().exit_code, 137);
    assert!(!cri.look(|world| world.sandboxes[SANDBOX].ready));
    client.remove_sandbox(SANDBOX).await.unwrap();
    assert!(cri.look(World::is_empty));
    assert_eq!(client.status(MAIN).await.unwrap_err().code(), Code::NotFound);
    cri.finished().await;
}

#[tokio::test(start_paused = true)]
async fn a_command_ends_as_told_or_with_its_time_or_with_its_container() {
    let mut world = World::new();
    world
        .pod("shop", "web-0", "u1")
        .container("main")
        .commands(secs(10), 4, b"done");
    let cri = ScriptedCri::start(world).await;
    let client = Client::of(&cri);
    let hook = || ExecSync::of("main").command(&["sh", "-c", "true"]);
    cri.in_order([
        expect(hook()),
        expect(hook().timeout(secs(5))),
        expect(hook()).exit(9),
        expect(hook()),
    ]);
    let run = |timeout| client.exec(MAIN, &["sh", "-c", "true"], timeout);

    assert_eq!(run(0).await.unwrap(), 4);
    assert_eq!(run(5).await.unwrap_err().code(), Code::DeadlineExceeded);
    assert_eq!(run(30).await.unwrap(), 9);
    cri.change(|world| world.will_end(MAIN, Instant::now() + secs(1), 0));
    let begun = Instant::now();
    assert_eq!(run(30).await.unwrap(), 137);
    assert_eq!(begun.elapsed(), secs(1));
    cri.finished().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_call_is_answered_and_what_it_does_are_two_things() {
    let (cri, client) = start().await;
    let broken = "the shim is gone";
    cri.in_order([
        expect(StopContainer::of("side")).error(Code::Unavailable, broken),
        expect(StopContainer::of("side")).reply_ok_but_do_nothing(),
        expect(StopContainer::of("side")).reply_error_but_do_it(Code::Unknown, broken),
    ]);
    let state = || cri.look(|world| world.container("side").unwrap().state);

    let refused = client.stop(SIDE, 1).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message(), state()),
        (Code::Unavailable, broken, SimState::Running)
    );
    client.stop(SIDE, 1).await.unwrap();
    assert_eq!(state(), SimState::Running);
    let lied = client.stop(SIDE, 1).await.unwrap_err();
    assert_eq!((lied.code(), state()), (Code::Unknown, SimState::Exited));
    cri.finished().await;
}

#[tokio::test(start_paused = true)]
async fn a_hanging_call_is_never_answered_and_does_not_keep_the_script_from_its_end() {
    let (cri, client) = start().await;
    cri.in_order([expect(StopContainer::of("main")).hang()]);
    assert!(timeout(secs(1_000_000), client.stop(MAIN, 30)).await.is_err());
    assert_eq!(
        cri.look(|world| world.container("main").unwrap().state),
        SimState::Running
    );
    cri.finished().await;
}

#[tokio::test(start_paused = true)]
async fn an_unexpected_call_is_refused_and_fails_the_test() {
    let (cri, client) = start().await;
    let refused = client.remove(MAIN).await.unwrap_err();
    assert_eq!(refused.code(), Code::Internal);
    assert!(cri.look(|world| world.container("main").is_some()));
    let verdict = cri.verdict(secs(1)).await.unwrap_err();
    assert!(
        verdict.contains("RemoveContainer of main in pod u1 was not expected; due: nothing"),
        "{verdict}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_with_other_arguments_fails_the_test() {
    let (cri, client) = start().await;
    cri.in_order([expect(StopContainer::of("main").timeout(secs(30)))]);
    client.stop(MAIN, 29).await.unwrap_err();
    let verdict = cri.verdict(secs(1)).await.unwrap_err();
    let says = "StopContainer of main in pod u1, timeout 29s came with other arguments than expected; \
                due: [StopContainer of main, timeout 30s]";
    assert!(verdict.contains(says), "{verdict}");
    assert!(
        verdict.contains("never came: StopContainer of main, timeout 30s"),
        "{verdict}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_before_its_turn_fails_the_test() {
    let (cri, client) = start().await;
    cri.in_order([expect(StopContainer::of("main")), expect(StopPodSandbox::any())]);
    client.stop_sandbox(SANDBOX).await.unwrap_err();
    let verdict = cri.verdict(secs(1)).await.unwrap_err();
    assert!(
        verdict.contains("StopPodSandbox of web-0 in pod u1 came too early; due: [StopContainer"),
        "{verdict}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_that_never_comes_fails_the_test_in_the_time_given() {
    let (cri, client) = start().await;
    cri.in_order([expect(StopContainer::of("main")), expect(StopPodSandbox::of("u1"))]);
    client.stop(MAIN, 30).await.unwrap();
    let begun = Instant::now();
    let verdict = cri.verdict(secs(50)).await.unwrap_err();
    assert_eq!(begun.elapsed(), secs(50));
    assert!(verdict.contains("- never came: StopPodSandbox of u1\n"), "{verdict}");
    assert!(
        verdict.contains("0.000s StopContainer of main in pod u1, timeout 30s -> OK at 2.000s"),
        "{verdict}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_script_that_was_not_played_fails_the_test_that_drops_it() {
    let (cri, _client) = start().await;
    cri.in_order([expect(StopContainer::of("main"))]);
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(cri))).unwrap_err();
    let message = panic.downcast_ref::<String>().unwrap();
    assert!(message.contains("never came: StopContainer of main"), "{message}");

    let (cri, _client) = start().await;
    cri.in_order([expect(StopContainer::of("main"))]);
    let panic = std::panic::AssertUnwindSafe(cri.finished())
        .catch_unwind()
        .await
        .unwrap_err();
    let message = panic.downcast_ref::<String>().unwrap();
    assert!(message.contains("never came: StopContainer of main"), "{message}");
    assert!(
        message.contains("tests/scripted_cri.rs:"),
        "it says who waited: {message}"
    );
}

#[tokio::test(start_paused = true)]
async fn lanes_keep_their_own_order_and_not_each_others() {
    let script = |cri: &ScriptedCri| {
        cri.side_by_side([
            vec![expect(ExecSync::of("main")), expect(StopContainer::of("main"))],
            vec![expect(ExecSync::of("side")), expect(StopContainer::of("side"))],
        ]);
        cri.in_order([expect(StopPodSandbox::any())]);
    };
    let (cri, client) = start().await;
    script(&cri);
    client.exec(SIDE, &["true"], 0).await.unwrap();
    client.exec(MAIN, &["true"], 0).await.unwrap();
    client.stop(MAIN, 1).await.unwrap();
    client.stop(SIDE, 1).await.unwrap();
    client.stop_sandbox(SANDBOX).await.unwrap();
    cri.finished().await;

    let (cri, client) = start().await;
    script(&cri);
    client.exec(MAIN, &["true"], 0).await.unwrap();
    client.stop(SIDE, 1).await.unwrap_err();
    assert!(cri.verdict(secs(1)).await.unwrap_err().contains("came too early"));

    let (cri, client) = start().await;
    script(&cri);
    client.stop_sandbox(SANDBOX).await.unwrap_err();
    assert!(cri.verdict(secs(1)).await.unwrap_err().contains("came too early"));
}

#[tokio::test(start_paused = true)]
async fn what_may_come_at_any_time_need_not_come() {
    let (cri, client) = start().await;
    cri.any_number_of(expect(RemoveContainer::of("main")).error(Code::Unknown, "busy"));
    cri.in_order([expect(StopContainer::of("main"))]);
    client.remove(MAIN).await.unwrap_err();
    client.stop(MAIN, 30).await.unwrap();
    client.remove(MAIN).await.unwrap_err();
    cri.finished().await;

    let (cri, client) = start().await;
    cri.allow_everything();
    cri.finished().await;
    client.remove_sandbox(SANDBOX).await.unwrap();
    assert!(cri.look(World::is_empty));
}

#[tokio::test(start_paused = true)]
async fn lists_are_filtered_by_id_label_state_and_sandbox() {
    let mut world = two_containers();
    world
        .pod("shop", "web-1", "u2")
        .container("main")
        .exited(0)
        .container("main");
    let cri = ScriptedCri::start(world).await;
    let client = Client::of(&cri);
    let by = |key: &str, value: &str| v1::ContainerFilter {
        label_selector: [(key.to_owned(), value.to_owned())].into(),
        ..Default::default()
    };
    let running = v1::ContainerStateValue {
        state: v1::ContainerState::ContainerRunning.into(),
    };

    assert_eq!(client.ids(v1::ContainerFilter::default()).await.len(), 4);
    assert_eq!(client.ids(by("io.kubernetes.pod.uid", "u1")).await, [MAIN, SIDE]);
    assert_eq!(client.ids(by("io.kubernetes.pod.name", "web-2")).await, [""; 0]);
    let mut filter = by("io.kubernetes.container.name", "main");
    filter.state = Some(running);
    assert_eq!(client.ids(filter.clone()).await, [MAIN, "container-u2-main-1"]);
    filter.pod_sandbox_id = SANDBOX.to_owned();
    assert_eq!(client.ids(filter).await, [MAIN]);
    assert_eq!(
        client
            .ids(v1::ContainerFilter {
                id: SIDE.to_owned(),
                ..Default::default()
            })
            .await,
        [SIDE]
    );
    cri.finished().await;
}

#[tokio::test(start_paused = true)]
async fn a_look_fails_hangs_or_is_late_when_told_so() {
    let (cri, client) = start().await;
    cri.fault_of(
        Read::ContainerStatus,
        "side",
        Fault::Error(Code::Unknown, "broken".to_owned()),
    );
    assert_eq!(client.status(SIDE).await.unwrap_err().code(), Code::Unknown);
    client.status(MAIN).await.unwrap();
    cri.fault(Read::ContainerStatus, Fault::Late(secs(9)));
    let begun = Instant::now();
    client.status(MAIN).await.unwrap();
    assert_eq!(begun.elapsed(), secs(9));
    cri.fault(Read::Version, Fault::Hang);
    assert!(timeout(secs(60), client.version()).await.is_err());
    cri.heal();
    client.status(SIDE).await.unwrap();
    client.version().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_restart_loses_the_calls_in_flight_and_nothing_else() {
    let (cri, client) = start().await;
    cri.in_order([expect(StopContainer::of("main"))]);
    let (lost, ()) = futures::join!(client.stop(MAIN, 30), async {
        sleep(secs(1)).await;
        cri.stop().await;
    });
    lost.unwrap_err();
    assert_eq!(client.version().await.unwrap_err().code(), Code::Unavailable);
    sleep(secs(60)).await;
    cri.start_again().await;
    assert_eq!(client.version().await.unwrap(), "containerd");
    let status = client.status(MAIN).await.unwrap();
    assert_eq!(status.exit_code, 3, "the signal had been sent");
    assert_eq!(
        status.finished_at - status.created_at,
        60_000_000_000,
        "2 s after it, runtime or not"
    );
    cri.finished().await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_socket_takes_connections_and_never_answers() {
    let (cri, client) = start().await;
    cri.fall_silent().await;
    assert!(timeout(secs(600), client.version()).await.is_err());
    cri.start_again().await;
    assert_eq!(Client::of(&cri).version().await.unwrap(), "containerd");
}

#[tokio::test(start_paused = true)]
async fn a_foreign_socket_speaks_first_and_not_grpc() {
    use tokio::io::AsyncReadExt;

    let (cri, client) = start().await;
    cri.speak_another_protocol().await;
    let mut plain = tokio::net::UnixStream::connect(cri.path()).await.unwrap();
    let mut greeting = [0; 4];
    plain.read_exact(&mut greeting).await.unwrap();
    assert_eq!(&greeting, b"SSH-");
    timeout(secs(1), client.version())
        .await
        .expect("a quick failure")
        .unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn the_log_has_every_call_with_its_time() {
    let (cri, client) = start().await;
    cri.in_order([
        expect(ExecSync::of("main")).then(secs(4)),
        expect(StopContainer::of("main")),
    ]);
    sleep(secs(1)).await;
    client.version().await.unwrap();
    client.exec(MAIN, &["sync"], 30).await.unwrap();
    client.stop(MAIN, 25).await.unwrap();
    let lines: Vec<_> = cri.log().iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "    1.000s Version  -> OK at 1.000s",
            "    1.000s ExecSync of main in pod u1, timeout 30s, command [\"sync\"] -> OK at 5.000s",
            "    5.000s StopContainer of main in pod u1, timeout 25s -> OK at 7.000s",
        ]
    );
    let effects = cri.effects();
    assert_eq!(
        effects.iter().map(|(at, _)| *at).collect::<Vec<_>>(),
        [secs(1), secs(5)]
    );
    assert_eq!(effects[0].1.command, ["sync"]);
    cri.finished().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_no_teardown_needs_fails_the_test() {
    let (cri, client) = start().await;
    let request = v1::StartContainerRequest {
        container_id: MAIN.to_owned(),
    };
    let refused = client.0.clone().start_container(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);
    assert!(
        cri.verdict(secs(1))
            .await
            .unwrap_err()
            .contains("start_container was called")
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_not_there_is_an_error_for_the_calls_for_which_it_is_one_in_containerd() {
    let (cri, client) = start().await;
    cri.allow_everything();
    assert_eq!(client.stop("gone", 30).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(
        client.exec("gone", &["true"], 0).await.unwrap_err().code(),
        Code::NotFound
    );
    assert_eq!(client.status("gone").await.unwrap_err().code(), Code::NotFound);
    assert_eq!(client.stop_sandbox("gone").await.unwrap_err().code(), Code::NotFound);
    client.remove("gone").await.unwrap();
    client.remove_sandbox("gone").await.unwrap();
}
