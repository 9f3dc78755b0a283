//! Configuration files: their kind, so that a swapped file is reported by it, and errors about them.

use std::{fmt, fs, io::Read as _, path::Path};

use serde::Deserialize;

/// Kind of the kubelet's configuration file.
pub(super) const KUBELET_CONFIGURATION: &str = "KubeletConfiguration";
/// Maximum number of bytes that are read.
const MAX_SIZE: u64 = 1 << 20;

/// Kind and API version of a YAML or JSON document.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DocumentKind {
    pub kind: String,
    #[serde(default)]
    pub api_version: String,
}

// === impl DocumentKind ===

impl DocumentKind {
    /// The kind of the file's first document that has one; `None` if the file cannot be read or has none.
    pub fn of_file(path: &Path) -> Option<Self> {
        let mut text = String::new();
        let file = fs::File::open(path).ok()?;
        file.take(MAX_SIZE).read_to_string(&mut text).ok()?;
        Self::of_text(&text)
    }

    fn of_text(text: &str) -> Option<Self> {
        text.split("\n---")
            .find_map(|document| serde_saphyr::from_str(document).ok())
    }

    pub fn is_kubeconfig(&self) -> bool {
        self.kind == "Config" && self.api_version == "v1"
    }

    pub fn is_kubelet_configuration(&self) -> bool {
        self.kind == KUBELET_CONFIGURATION
    }
}

impl fmt::Display for DocumentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.is_kubeconfig(), self.api_version.as_str()) {
            (true, _) => f.write_str("a kubeconfig"),
            (false, "") => write!(f, "a document of kind {}", self.kind),
            (false, version) => write!(f, "a {} ({version})", self.kind),
        }
    }
}

/// Whether the path provably does not exist.
pub(super) fn is_absent(path: &Path) -> bool {
    matches!(path.try_exists(), Ok(false))
}

/// The first line of an error. YAML errors quote the source in further lines.
pub(super) fn first_line(error: &dyn fmt::Display) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_is_recognized_in_yaml_json_and_after_other_documents() {
        for (text, name) in [
            ("apiVersion: v1\nkind: Config\nclusters: []\n", Some("a kubeconfig")),
            (
                "{\"kind\": \"KubeletConfiguration\", \"apiVersion\": \"kubelet.config.k8s.io/v1beta1\"}",
                Some("a KubeletConfiguration (kubelet.config.k8s.io/v1beta1)"),
            ),
            (
                "# kubeadm\n---\napiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\n---\nkind: Other\n",
                Some("a ClusterConfiguration (kubeadm.k8s.io/v1beta4)"),
            ),
            ("kind: Pod", Some("a document of kind Pod")),
            ("clusters: [", None),
            ("", None),
        ] {
            let kind = DocumentKind::of_text(text);
            assert_eq!(kind.map(|kind| kind.to_string()).as_deref(), name, "{text}");
        }
    }
}
