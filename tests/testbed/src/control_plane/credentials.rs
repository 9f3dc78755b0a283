//! Keys, certificates and tokens of one control plane.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use uuid::Uuid;

/// The server's certificate, in the control plane's directory.
pub const SERVER_CERTIFICATE: &str = "server.pem";
/// The server's key.
pub const SERVER_KEY: &str = "server-key.pem";
/// Bearer tokens with user and groups.
pub const TOKENS: &str = "tokens.csv";
/// The key that signs the tokens of service accounts.
pub const ACCOUNT_KEY: &str = "accounts-key.pem";
/// Its public half.
pub const ACCOUNT_PUBLIC_KEY: &str = "accounts.pem";

/// The server reads its tokens once, at the start: identities for that many nodes are there from the beginning.
const NODES: usize = 512;

/// What clients need to know.
#[derive(Debug)]
pub struct Credentials {
    ca: String,
    secret: String,
}

/// The names of the nodes that have an identity.
pub fn nodes() -> impl Iterator<Item = String> {
    (0..NODES).map(|index| format!("node-{index}"))
}

// === impl Credentials ===

impl Credentials {
    /// Makes new ones and writes the server's files.
    pub fn new(directory: &Path) -> Result<Self> {
        let write = |name: &str, text: &str| {
            let path = directory.join(name);
            fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
        };
        let ca_key = KeyPair::generate().context("making the key of the CA")?;
        let mut ca = CertificateParams::default();
        ca.distinguished_name.push(DnType::CommonName, "pod-teardown testbed");
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let ca_certificate = ca.self_signed(&ca_key).context("making the CA")?;

        let server_key = KeyPair::generate().context("making the server's key")?;
        let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        let server = CertificateParams::new(names)
            .and_then(|params| params.signed_by(&server_key, &Issuer::from_params(&ca, &ca_key)))
            .context("making the server's certificate")?;
        write(SERVER_CERTIFICATE, &server.pem())?;
        write(SERVER_KEY, &server_key.serialize_pem())?;

        let account_key = KeyPair::generate().context("making the key of the service accounts")?;
        write(ACCOUNT_KEY, &account_key.serialize_pem())?;
        write(ACCOUNT_PUBLIC_KEY, &account_key.public_key_pem())?;

        let credentials = Self {
            ca: ca_certificate.pem(),
            secret: Uuid::new_v4().simple().to_string(),
        };
        write(TOKENS, &credentials.tokens())?;
        Ok(credentials)
    }

    /// The certificate that the server's is signed by.
    pub fn ca(&self) -> &str {
        &self.ca
    }

    /// The administrator's token.
    pub fn admin_token(&self) -> String {
        format!("admin-{}", self.secret)
    }

    /// A node's token.
    pub fn node_token(&self, name: &str) -> String {
        format!("{name}-{}", self.secret)
    }

    fn tokens(&self) -> String {
        let admin = format!("{},admin,admin,\"system:masters\"\n", self.admin_token());
        let nodes = nodes().map(|name| {
            let token = self.node_token(&name);
            format!("{token},system:node:{name},{name},\"system:nodes\"\n")
        });
        std::iter::once(admin).chain(nodes).collect()
    }
}
