//! preStop hooks.

use k8s_openapi::{api::core::v1::LifecycleHandler, apimachinery::pkg::util::intstr::IntOrString};

/// Approximate bytes of an element of a list, besides its text.
pub(super) const ELEMENT: usize = 128;

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
    /// One that is too large to keep. It is read when it runs.
    Large,
}

/// The `httpGet` of a handler.
#[derive(Debug, Clone, PartialEq)]
pub struct HttpGet {
    /// Host, if not the pod itself.
    pub host: Option<String>,
    /// Whether the scheme is `HTTPS`.
    pub https: bool,
    /// Port of the request.
    pub port: HookPort,
    /// Path with query.
    pub path: String,
    /// Extra headers, repeats kept.
    pub headers: Vec<(String, String)>,
}

/// Port of an `httpGet`.
#[derive(Debug, Clone, PartialEq)]
pub enum HookPort {
    /// Port number.
    Number(i32),
    /// Name of one of the container's ports.
    Name(String),
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
                port: match &get.port {
                    IntOrString::Int(number) => HookPort::Number(*number),
                    IntOrString::String(name) => HookPort::Name(name.clone()),
                },
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
            Self::Large => "large",
        }
    }

    /// Approximate bytes.
    pub(super) fn weight(&self) -> usize {
        match self {
            Self::Exec(command) => command.iter().map(|text| ELEMENT + text.len()).sum(),
            Self::HttpGet(get) => {
                let headers = get.headers.iter();
                let headers = headers.map(|(name, value)| ELEMENT + name.len() + value.len());
                get.path.len() + headers.sum::<usize>()
            }
            Self::Sleep(_) | Self::Invalid | Self::Large => 0,
        }
    }
}
