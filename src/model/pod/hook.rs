//! preStop hooks.

use k8s_openapi::api::core::v1::{HTTPGetAction, LifecycleHandler};

/// A preStop handler.
#[derive(Debug, Clone, PartialEq)]
pub enum Hook {
    /// A command in the container.
    Exec(Vec<String>),
    /// A request to the pod, or to a host that is not empty.
    HttpGet(HTTPGetAction),
    /// A wait in seconds.
    Sleep(u64),
    /// A handler without an action: its failure is reported.
    Invalid,
}

// === impl Hook ===

impl Hook {
    /// The first action that is set, in the kubelet's order (kubelet: `pkg/kubelet/lifecycle/handlers.go` `Run`).
    pub fn from_handler(handler: &LifecycleHandler) -> Self {
        if let Some(exec) = &handler.exec {
            return Self::Exec(exec.command.clone().unwrap_or_default());
        }
        if let Some(get) = &handler.http_get {
            return Self::HttpGet(HTTPGetAction {
                host: get.host.clone().filter(|host| !host.is_empty()),
                ..get.clone()
            });
        }
        match &handler.sleep {
            Some(sleep) => Self::Sleep(u64::try_from(sleep.seconds).unwrap_or(0)),
            None => Self::Invalid,
        }
    }

    /// The handler's name in the API.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Exec(_) => "exec",
            Self::HttpGet(_) => "httpGet",
            Self::Sleep(_) => "sleep",
            Self::Invalid => "invalid",
        }
    }
}
