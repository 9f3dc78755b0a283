//! A driver that cannot be called.

use std::path::PathBuf;

use super::kind::Kind;
use crate::model::{failure::Reasoned, waits_for::WaitsFor};

/// A driver that is needed but cannot be called.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{kind} driver {driver:?} is not available on this node: {why} (registrations below {registry_dir:?}); it can \
     only be called once its pod runs here again"
)]
pub struct DriverUnavailable {
    /// Of which kind it would be.
    pub kind: Kind,
    /// Its name.
    pub driver: String,
    /// How that was detected.
    pub why: String,
    /// The directory in which drivers register.
    pub registry_dir: PathBuf,
    /// Its sockets that do not answer.
    pub sockets: Vec<PathBuf>,
}

impl Reasoned for DriverUnavailable {
    fn reason(&self) -> std::borrow::Cow<'static, str> {
        "unregistered".into()
    }

    /// A driver that comes back makes its sockets again.
    fn waits_for(&self) -> Vec<WaitsFor> {
        let registry = WaitsFor::Path(self.registry_dir.clone());
        let sockets = self.sockets.iter().cloned().map(WaitsFor::Path);
        [registry].into_iter().chain(sockets).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unavailable_driver_is_reported_with_directory_and_remedy() {
        let gone = DriverUnavailable {
            kind: Kind::Csi,
            driver: "csi.example.com".to_owned(),
            why: "none of 3 sockets registers it".to_owned(),
            registry_dir: "/var/lib/kubelet/plugins_registry".into(),
            sockets: Vec::new(),
        };
        assert_eq!(
            gone.to_string(),
            "CSI driver \"csi.example.com\" is not available on this node: none of 3 sockets registers it (registrations below \
             \"/var/lib/kubelet/plugins_registry\"); it can only be called once its pod runs here again"
        );
    }
}
