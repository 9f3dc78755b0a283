//! preStop hooks.

use k8s_openapi::{api::core::v1::LifecycleHandler, apimachinery::pkg::util::intstr::IntOrString};

/// A preStop handler.
#[derive(Debug, Clone, PartialEq)]
pub enum Hook {
    /// A command in the container.
    Exec(Vec<String>),
    /// A request to the pod.
    HttpGet(HttpGet),
    /// A wait in seconds.
    Sleep(u64),
    /// A handler without an action: its failure is reported.
    Invalid,
}

/// The `httpGet` of a handler.
#[derive(Debug, Clone, PartialEq)]
pub struct HttpGet {
    /// Host, if not the pod itself.
    pub host: Option<String>,
    /// Whether the scheme is `HTTPS`.
    pub https: bool,
    /// Number or name of one of the container's ports.
    pub port: IntOrString,
    /// Path with query.
    pub path: String,
    /// Extra headers, repeats kept.
    pub headers: Vec<(String, String)>,
}

// === impl HttpGet ===

impl HttpGet {
    /// Scheme of its URL.
    pub fn scheme(&self) -> &'static str {
        if self.https { "https" } else { "http" }
    }
}

// === impl Hook ===

impl Hook {
    /// The first action that is set, in the kubelet's order (kubelet: `pkg/kubelet/lifecycle/handlers.go` `Run`).
    pub fn from_handler(handler: &LifecycleHandler) -> Self {
        if let Some(exec) = &handler.exec {
            return Self::Exec(exec.command.clone().unwrap_or_default());
        }
        if let Some(get) = &handler.http_get {
            return Self::HttpGet(HttpGet {
                host: get.host.clone().filter(|host| !host.is_empty()),
                https: get
                    .scheme
                    .as_deref()
                    .is_some_and(|scheme| scheme.eq_ignore_ascii_case("https")),
                port: get.port.clone(),
                path: get.path.clone().unwrap_or_default(),
                headers: get
                    .http_headers
                    .iter()
                    .flatten()
                    .map(|header| (header.name.clone(), header.value.clone()))
                    .collect(),
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
