//! The world in CRI protobuf.

use std::collections::HashMap;

use k8s_cri::v1;
use prost::Message;
use tonic::Status;

use super::pod::keys;
use super::world::{Manners, SimContainer, SimSandbox, SimState, World};

type Label<'a> = (&'static str, &'a String);

impl World {
    pub(super) fn list_sandboxes(&self, filter: Option<&v1::PodSandboxFilter>) -> Vec<v1::PodSandbox> {
        let wanted = |sandbox: &&SimSandbox| {
            !sandbox.half_made
                && filter.is_none_or(|filter| {
                    (filter.id.is_empty() || filter.id == sandbox.id)
                        && filter.state.as_ref().is_none_or(|value| value.state == sandbox.state())
                        && selects(&filter.label_selector, &sandbox.labels())
                })
        };
        // Most lists are of one pod among a thousand.
        let wanted = self.sandboxes.values().filter(wanted);
        wanted.map(SimSandbox::listed).collect()
    }

    /// As Go's gRPC refuses what is larger than a message.
    pub(super) fn fits<T: Message>(&self, answer: T) -> Result<T, Status> {
        let (size, most) = (answer.encoded_len(), self.largest_list);
        if size > most {
            let why = format!("grpc: trying to send message larger than max ({size} vs. {most})");
            return Err(Status::resource_exhausted(why));
        }
        Ok(answer)
    }

    pub(super) fn list_containers(&self, filter: Option<&v1::ContainerFilter>) -> Vec<v1::Container> {
        let wanted = |container: &&SimContainer| {
            filter.is_none_or(|filter| {
                (filter.id.is_empty() || filter.id == container.id)
                    && (filter.pod_sandbox_id.is_empty() || filter.pod_sandbox_id == container.sandbox_id)
                    && filter
                        .state
                        .as_ref()
                        .is_none_or(|value| value.state == container.state())
                    && selects(&filter.label_selector, &self.labels(container))
            })
        };
        let wanted = self.containers.values().filter(wanted);
        wanted.map(|container| self.listed(container)).collect()
    }

    pub(super) fn sandbox_status(&self, id: &str, verbose: bool) -> Result<v1::PodSandboxStatusResponse, Status> {
        let sandbox = self.sandboxes.get(id);
        let sandbox = sandbox.ok_or_else(|| Status::not_found(format!("no sandbox {id}")))?;
        if sandbox.half_made {
            return Err(Status::unknown(format!("specified sandbox not found: {id}")));
        }
        let v1::PodSandbox {
            id,
            metadata,
            state,
            created_at,
            labels,
            annotations,
            ..
        } = sandbox.listed();
        let mut ips = sandbox.ips.iter().cloned();
        let network = v1::PodSandboxNetworkStatus {
            ip: ips.next().unwrap_or_default(),
            additional_ips: ips.map(|ip| v1::PodIp { ip }).collect(),
        };
        let parent = &sandbox.cgroup_parent;
        let config = match self.manners {
            Manners::Containerd => {
                let pid = sandbox.pid.unwrap_or(0);
                serde_json::json!({ "pid": pid, "config": { "linux": { "cgroup_parent": parent } } })
            }
            // No process is in it, as `drop_infra_ctr` has it.
            Manners::CriO => serde_json::json!({
                "sandboxID": sandbox.id,
                "runtimeSpec": { "annotations": { "io.kubernetes.cri-o.CgroupParent": parent } },
            }),
        };
        let info = if verbose {
            HashMap::from([("info".to_owned(), config.to_string())])
        } else {
            HashMap::new()
        };
        let network = Some(network);
        let status = v1::PodSandboxStatus {
            id,
            metadata,
            state,
            created_at,
            network,
            labels,
            annotations,
            ..Default::default()
        };
        Ok(v1::PodSandboxStatusResponse {
            status: Some(status),
            info,
            ..Default::default()
        })
    }

    pub(super) fn container_status(&self, id: &str, verbose: bool) -> Option<v1::ContainerStatusResponse> {
        let container = self.containers.get(id)?;
        let v1::Container {
            id,
            metadata,
            image,
            image_ref,
            state,
            created_at,
            labels,
            annotations,
            ..
        } = self.listed(container);
        let mount = |(container_path, host_path): &(String, String)| v1::Mount {
            container_path: container_path.clone(),
            host_path: host_path.clone(),
            ..Default::default()
        };
        let status = v1::ContainerStatus {
            id,
            metadata,
            state,
            created_at,
            started_at: container.started_at,
            finished_at: container.finished_at,
            exit_code: container.exit_code,
            image,
            image_ref,
            reason: container.reason.clone(),
            message: container.message.clone(),
            labels,
            annotations,
            mounts: container.mounts.iter().map(mount).collect(),
            log_path: container.log_path.clone(),
            ..Default::default()
        };
        // A runtime with virtual machines has none.
        let process = serde_json::json!({ "sandboxID": container.sandbox_id, "pid": container.pid.unwrap_or(0) });
        let info = if verbose {
            HashMap::from([("info".to_owned(), process.to_string())])
        } else {
            HashMap::new()
        };
        Some(v1::ContainerStatusResponse {
            status: Some(status),
            info,
        })
    }

    /// A container whose sandbox is gone no longer has that one's names.
    fn labels<'a>(&'a self, container: &'a SimContainer) -> Vec<Label<'a>> {
        let own = [
            (keys::POD_UID, &container.pod_uid),
            (keys::CONTAINER_NAME, &container.name),
        ];
        let sandbox = self.sandboxes.get(&container.sandbox_id);
        let names = sandbox.map(|sandbox| {
            [
                (keys::POD_NAME, &sandbox.pod_name),
                (keys::POD_NAMESPACE, &sandbox.namespace),
            ]
        });
        own.into_iter().chain(names.into_iter().flatten()).collect()
    }

    fn listed(&self, container: &SimContainer) -> v1::Container {
        v1::Container {
            id: container.id.clone(),
            pod_sandbox_id: container.sandbox_id.clone(),
            metadata: Some(v1::ContainerMetadata {
                name: container.name.clone(),
                attempt: container.attempt,
            }),
            image: Some(v1::ImageSpec {
                image: container.image.clone(),
                ..Default::default()
            }),
            image_ref: format!("sha256:{}", container.image),
            state: container.state(),
            created_at: container.created_at,
            labels: owned(&self.labels(container)),
            annotations: container.annotations.iter().cloned().collect(),
            ..Default::default()
        }
    }
}

impl SimSandbox {
    fn labels(&self) -> [Label<'_>; 3] {
        [
            (keys::POD_NAME, &self.pod_name),
            (keys::POD_NAMESPACE, &self.namespace),
            (keys::POD_UID, &self.pod_uid),
        ]
    }

    fn state(&self) -> i32 {
        i32::from(if self.ready {
            v1::PodSandboxState::SandboxReady
        } else {
            v1::PodSandboxState::SandboxNotready
        })
    }

    fn listed(&self) -> v1::PodSandbox {
        v1::PodSandbox {
            id: self.id.clone(),
            metadata: Some(v1::PodSandboxMetadata {
                name: self.pod_name.clone(),
                uid: self.pod_uid.clone(),
                namespace: self.namespace.clone(),
                attempt: self.attempt,
            }),
            state: self.state(),
            created_at: self.created_at,
            labels: owned(&self.labels()),
            annotations: self.annotations.iter().cloned().collect(),
            ..Default::default()
        }
    }
}

impl SimContainer {
    fn state(&self) -> i32 {
        i32::from(match self.state {
            SimState::Created => v1::ContainerState::ContainerCreated,
            SimState::Running => v1::ContainerState::ContainerRunning,
            SimState::Exited => v1::ContainerState::ContainerExited,
            SimState::Unknown => v1::ContainerState::ContainerUnknown,
        })
    }
}

fn selects(selector: &HashMap<String, String>, labels: &[Label<'_>]) -> bool {
    let has = |(key, value): (&String, &String)| labels.iter().any(|label| label.0 == key && label.1 == value);
    selector.iter().all(has)
}

fn owned(labels: &[Label<'_>]) -> HashMap<String, String> {
    let owned = |(key, value): &Label<'_>| ((*key).to_owned(), (*value).clone());
    labels.iter().map(owned).collect()
}
