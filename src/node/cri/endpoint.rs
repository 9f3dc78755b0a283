//! Address of the container runtime.

use std::{fmt, path::Path, str::FromStr};

/// The kernel's limit of a unix socket's path, including the final NUL.
const MAX_SOCKET_PATH: usize = 108;

/// Address of a container runtime: the absolute path of a unix socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CriEndpoint {
    pub(super) path: String,
}

/// A text that is not a valid [`CriEndpoint`], and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} {1}")]
pub struct EndpointError(String, &'static str);

// === impl CriEndpoint ===

impl CriEndpoint {
    /// The socket's path.
    pub fn path(&self) -> &Path {
        Path::new(&self.path)
    }
}

impl FromStr for CriEndpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let why = match text.strip_prefix("unix://") {
            None => "is not of the form unix:///path/to/socket",
            Some(path) if !path.starts_with('/') => {
                "names a relative path; write unix:// and then the absolute path of the socket"
            }
            Some(path) if path.len() >= MAX_SOCKET_PATH => "is longer than the 107 bytes that a socket's path may have",
            Some(path) => return Ok(Self { path: path.into() }),
        };
        Err(EndpointError(text.to_owned(), why))
    }
}

impl fmt::Display for CriEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix://{}", self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_absolute_unix_path_is_an_endpoint() {
        let good: CriEndpoint = "unix:///run/containerd/containerd.sock".parse().unwrap();
        assert_eq!(good.path(), Path::new("/run/containerd/containerd.sock"));
        assert_eq!(good.to_string(), "unix:///run/containerd/containerd.sock");

        let parse = |text: &str| text.parse::<CriEndpoint>().unwrap_err();
        for text in ["", "/run/containerd.sock", "tcp://127.0.0.1:1", "unix:/run/x"] {
            assert!(parse(text).1.contains("is not of the form"));
        }
        for text in ["unix://", "unix://run/x"] {
            assert!(parse(text).1.contains("a relative path"));
        }
        let long = format!("unix:///{}", "x".repeat(MAX_SOCKET_PATH - 1));
        assert!(parse(&long).1.contains("is longer than"));
        assert!(long[..long.len() - 1].parse::<CriEndpoint>().is_ok());
    }
}
