//! Whether a container may be restarted after its exit, by the rules of the spec (`ContainerShouldRestart`).

use k8s_openapi::api::core::v1::{Container, PodSpec};

/// Reason of an exit due to a `RestartAllContainers` rule: such a container is restarted.
const RESTARTING_ALL: &str = "RestartingAllContainers";

/// Restart policy, of a pod or of one container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Policy {
    Always,
    OnFailure,
    Never,
}

// === impl Policy ===

impl Policy {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "Always" => Some(Self::Always),
            "OnFailure" => Some(Self::OnFailure),
            "Never" => Some(Self::Never),
            _ => None,
        }
    }

    fn restarts(self, exit_code: i32) -> bool {
        match self {
            Self::Always => true,
            Self::OnFailure => exit_code != 0,
            Self::Never => false,
        }
    }
}

/// Whether the spec restarts the container after this exit: by its rules, then its own policy, then the pod's.
pub(super) fn should_restart(spec: &PodSpec, container: &Container, exit_code: i32) -> bool {
    // Rules are valid only with a policy of the container itself.
    if container.restart_policy.is_some() && matching_rule_restarts(container, exit_code) {
        return true;
    }
    let own = container.restart_policy.as_deref().and_then(Policy::parse);
    let pods = spec.restart_policy.as_deref().and_then(Policy::parse);
    own.or(pods).unwrap_or(Policy::Always).restarts(exit_code)
}

/// As [`should_restart`], or the exit was part of a restart of the whole pod.
pub(super) fn restarts_after(spec: &PodSpec, container: &Container, exit_code: i32, reason: Option<&str>) -> bool {
    reason == Some(RESTARTING_ALL) || should_restart(spec, container, exit_code)
}

/// A restartable init container, with its own policy Always (`IsRestartableInitContainer`).
pub(super) fn is_sidecar(init_container: &Container) -> bool {
    init_container.restart_policy.as_deref() == Some("Always")
}

/// Whether any rule of the spec restarts the whole pod (`AllContainersCouldRestart`).
pub(super) fn all_could_restart(spec: &PodSpec) -> bool {
    let restarts_all = |container: &Container| {
        container
            .restart_policy_rules
            .iter()
            .flatten()
            .any(|rule| rule.action == "RestartAllContainers")
    };
    spec.init_containers
        .iter()
        .flatten()
        .chain(&spec.containers)
        .any(restarts_all)
}

/// The first matching rule decides, and only for a restart. With an unknown action the policies decide.
fn matching_rule_restarts(container: &Container, exit_code: i32) -> bool {
    let matches = |operator: &str, listed: bool| match operator {
        "In" => listed,
        "NotIn" => !listed,
        _ => false,
    };
    container
        .restart_policy_rules
        .iter()
        .flatten()
        .find(|rule| {
            rule.exit_codes.as_ref().is_some_and(|codes| {
                matches(
                    &codes.operator,
                    codes.values.iter().flatten().any(|code| *code == exit_code),
                )
            })
        })
        .is_some_and(|rule| matches!(rule.action.as_str(), "Restart" | "RestartAllContainers"))
}
