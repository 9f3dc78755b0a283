//! The scripted CRI keeps its word: it lets no wrong call pass, and does the right ones as containerd does.

mod clock;
mod script;
mod world;

use std::time::Duration;

use k8s_cri::v1;
use k8s_cri::v1::runtime_service_client::RuntimeServiceClient;
use testbed::scripted_cri::{ScriptedCri, World};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

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
