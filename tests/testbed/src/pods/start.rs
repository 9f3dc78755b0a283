//! One pod, from its object to running containers.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::future::try_join_all;
use indexmap::IndexMap;
use jiff::Timestamp;
use k8s_cri::v1::{
    ContainerState, ContainerStatusRequest, CreateContainerRequest, Mount, MountPropagation, PodSandboxConfig,
    PodSandboxStatusRequest, RunPodSandboxRequest, StartContainerRequest,
};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, VolumeMount};
use tokio::time::{Instant, sleep};

use super::identity::Identity;
use super::volumes::{self, VolumeDirs, make_dir, write};
use super::{NodeDirs, StartedPod, configs, qos};
use crate::cgroups;
use crate::containerd::Cri;

/// For init containers that are not sidecars: a test's own work, so short.
const INIT_LIMIT: Duration = Duration::from_secs(60);
const INIT_POLL: Duration = Duration::from_millis(20);

/// Everything that the start of a pod's container needs.
struct Start<'a> {
    cri: Cri,
    pod: &'a Pod,
    identity: &'a Identity,
    dir: &'a Path,
    logs: &'a Path,
    volumes: &'a VolumeDirs,
    sandbox_id: &'a str,
    sandbox: &'a PodSandboxConfig,
}

/// See the module's documentation.
pub(super) async fn start(
    cri: Cri,
    dirs: &NodeDirs,
    pod: Pod,
    identity: Identity,
    published: VolumeDirs,
) -> Result<StartedPod> {
    let started_at = Timestamp::now();
    let spec = pod.spec.clone().context("read the pod: spec is missing")?;
    let cgroup = dirs.cgroup(&pod, &identity.uid);
    let (dir, logs) = (dirs.pod(&identity.uid), dirs.logs(&identity));
    dirs.cgroup_driver.create(&cgroup).await?;
    cgroups::set(&cgroup, "cpu.shares", &qos::cpu_shares(&spec.containers).to_string())?;
    for part in ["volumes", "plugins", "containers"] {
        make_dir(&dir.join(part), 0o750)?;
    }
    make_dir(&dir, 0o750)?;
    make_dir(&logs, 0o755)?;
    let own = spec.volumes.iter().flatten();
    let mut volumes = volumes::set_up(own.filter(|volume| !published.contains_key(&volume.name)), &dir)?;
    volumes.extend(published);

    let sandbox = configs::sandbox(&pod, &identity, &cgroup, &logs.to_string_lossy(), started_at);
    let (sandbox_id, ip) = run_sandbox(cri.clone(), &sandbox).await?;
    write(&dir.join("etc-hosts"), &hosts(&identity, ip.as_deref()), 0o644)?;

    let start = Start {
        cri,
        pod: &pod,
        identity: &identity,
        dir: &dir,
        logs: &logs,
        volumes: &volumes,
        sandbox_id: &sandbox_id,
        sandbox: &sandbox,
    };
    let containers = start.all(&spec).await?;
    Ok(StartedPod {
        sandbox_id,
        containers,
        ip,
        cgroup,
        volumes,
        started_at,
        dir,
        logs,
        pod,
        identity,
    })
}

async fn run_sandbox(mut cri: Cri, config: &PodSandboxConfig) -> Result<(String, Option<String>)> {
    let request = RunPodSandboxRequest {
        config: Some(config.clone()),
        runtime_handler: String::new(),
    };
    let id = cri
        .run_pod_sandbox(request)
        .await
        .context("run its sandbox")?
        .into_inner()
        .pod_sandbox_id;
    let request = PodSandboxStatusRequest {
        pod_sandbox_id: id.clone(),
        verbose: false,
    };
    let status = cri
        .pod_sandbox_status(request)
        .await
        .with_context(|| format!("look at sandbox {id}"))?;
    let network = status
        .into_inner()
        .status
        .unwrap_or_default()
        .network
        .unwrap_or_default();
    Ok((id, Some(network.ip).filter(|ip| !ip.is_empty())))
}

/// Sidecars keep running beside the others; other init containers run to completion first.
pub(super) fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

impl Start<'_> {
    async fn all(&self, spec: &PodSpec) -> Result<IndexMap<String, String>> {
        let mut ids = IndexMap::new();
        for container in spec.init_containers.iter().flatten() {
            let id = self.one(container).await?;
            if !is_sidecar(container) {
                self.wait_for_success(&id)
                    .await
                    .with_context(|| format!("run init container {}", container.name))?;
            }
            ids.insert(container.name.clone(), id);
        }
        let main = try_join_all(spec.containers.iter().map(|container| self.one(container))).await?;
        ids.extend(spec.containers.iter().map(|container| container.name.clone()).zip(main));
        Ok(ids)
    }

    async fn one(&self, container: &Container) -> Result<String> {
        let name = &container.name;
        make_dir(&self.logs.join(name), 0o755)?;
        let mounts = self
            .mounts(container)
            .with_context(|| format!("prepare container {name}"))?;
        let request = CreateContainerRequest {
            pod_sandbox_id: self.sandbox_id.to_owned(),
            config: Some(configs::container(self.pod, self.identity, container, mounts)),
            sandbox_config: Some(self.sandbox.clone()),
        };
        let mut cri = self.cri.clone();
        let created = cri
            .create_container(request)
            .await
            .with_context(|| format!("create container {name}"))?;
        let id = created.into_inner().container_id;
        let request = StartContainerRequest {
            container_id: id.clone(),
        };
        cri.start_container(request)
            .await
            .with_context(|| format!("start container {name}"))?;
        Ok(id)
    }

    fn mounts(&self, container: &Container) -> Result<Vec<Mount>> {
        let mut mounts = Vec::new();
        for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
            let Some(volume) = self.volumes.get(&mount.name) else {
                bail!("volume {} is mounted but not defined", mount.name);
            };
            let source = volumes::source(volume, self.dir, &container.name, index, mount)?;
            mounts.push(Mount {
                readonly: mount.read_only.unwrap_or_default(),
                propagation: propagation(mount) as i32,
                ..bind(&source, &mount.mount_path)
            });
        }
        if mounts.iter().all(|mount| mount.container_path != "/etc/hosts") {
            mounts.push(bind(&self.dir.join("etc-hosts"), "/etc/hosts"));
        }
        let last_words = configs::termination_message_path(container);
        if !last_words.is_empty() {
            // A restarted container gets another file, with a random suffix of eight hexadecimal digits.
            let id = uuid::Uuid::new_v4().simple().to_string();
            let dir = self.dir.join("containers").join(&container.name);
            let file = dir.join(&id[..8]);
            make_dir(&dir, 0o750)?;
            write(&file, "", 0o666)?;
            mounts.push(bind(&file, &last_words));
        }
        Ok(mounts)
    }

    async fn wait_for_success(&self, id: &str) -> Result<()> {
        let deadline = Instant::now() + INIT_LIMIT;
        let mut cri = self.cri.clone();
        loop {
            let request = ContainerStatusRequest {
                container_id: id.to_owned(),
                verbose: false,
            };
            let answer = cri
                .container_status(request)
                .await
                .with_context(|| format!("look at container {id}"))?;
            let status = answer.into_inner().status.unwrap_or_default();
            match status.state() {
                ContainerState::ContainerExited if status.exit_code == 0 => return Ok(()),
                ContainerState::ContainerExited => bail!("it ended with exit code {}", status.exit_code),
                _ if Instant::now() > deadline => bail!("it still runs after {INIT_LIMIT:?}"),
                _ => sleep(INIT_POLL).await,
            }
        }
    }
}

fn bind(source: &Path, target: &str) -> Mount {
    Mount {
        host_path: source.to_string_lossy().into_owned(),
        container_path: target.to_owned(),
        ..Default::default()
    }
}

fn propagation(mount: &VolumeMount) -> MountPropagation {
    match mount.mount_propagation.as_deref() {
        Some("HostToContainer") => MountPropagation::PropagationHostToContainer,
        Some("Bidirectional") => MountPropagation::PropagationBidirectional,
        _ => MountPropagation::PropagationPrivate,
    }
}

fn hosts(identity: &Identity, ip: Option<&str>) -> String {
    let own = ip.map(|ip| format!("{ip}\t{}\n", identity.name)).unwrap_or_default();
    format!("127.0.0.1\tlocalhost\n{own}")
}
