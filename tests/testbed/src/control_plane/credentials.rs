//! Keys, certificates and tokens of one control plane.

use std::{
    fs,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};
use base64::{Engine, engine::general_purpose::STANDARD};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use uuid::Uuid;

use crate::api::{ADMIN, kubeconfig_of, node_user};

/// The CA certificate, in the control plane's directory.
pub const CA: &str = "ca.pem";
/// The server's certificate, in the control plane's directory.
pub const SERVER_CERTIFICATE: &str = "server.pem";
pub const SERVER_KEY: &str = "server-key.pem";
/// Bearer tokens with user and groups.
pub const TOKENS: &str = "tokens.csv";
/// The key that signs the tokens of service accounts.
pub const ACCOUNT_KEY: &str = "accounts-key.pem";
pub const ACCOUNT_PUBLIC_KEY: &str = "accounts.pem";

/// The server reads its tokens only at the start, so identities for this many nodes are created in advance.
const NODES: usize = 512;

/// User with the rights of the controller manager in the bootstrap policy.
const MANAGER: &str = "system:kube-controller-manager";

/// Credentials for clients.
#[derive(Debug)]
pub struct Credentials {
    ca: String,
    issuer: Issuer<'static, KeyPair>,
    secret: String,
    manager: Pair,
}

/// A certificate and its key, as PEM.
#[derive(Debug)]
struct Pair {
    certificate: String,
    key: String,
}

/// Names of the nodes with an identity.
pub fn nodes() -> impl Iterator<Item = String> {
    (0..NODES).map(|index| format!("node-{index}"))
}

impl Credentials {
    /// Creates new ones and writes the server's files.
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
        let issuer = Issuer::new(ca, ca_key);
        write(CA, &ca_certificate.pem())?;
        write(SERVER_CERTIFICATE, &server.pem())?;
        write(SERVER_KEY, &server_key.serialize_pem())?;

        let account_key = KeyPair::generate().context("making the key of the service accounts")?;
        write(ACCOUNT_KEY, &account_key.serialize_pem())?;
        write(ACCOUNT_PUBLIC_KEY, &account_key.public_key_pem())?;

        let credentials = Self {
            ca: ca_certificate.pem(),
            secret: Uuid::new_v4().simple().to_string(),
            manager: Pair::of_client(MANAGER, &[], None, &issuer)?,
            issuer,
        };
        write(TOKENS, &credentials.tokens())?;
        Ok(credentials)
    }

    /// The CA of the server's certificate.
    pub fn ca(&self) -> &str {
        &self.ca
    }

    pub fn token(&self, user: &str) -> String {
        format!("{user}-{}", self.secret)
    }

    /// A certificate of a node that expires after this time, and its key, in one file as a kubelet stores them.
    pub fn node_certificate(&self, name: &str, valid: Duration) -> Result<String> {
        let pair = Pair::of_client(&node_user(name), &["system:nodes"], Some(valid), &self.issuer)?;
        Ok(pair.certificate + &pair.key)
    }

    /// A kubeconfig of the controller manager with a certificate, as in other clusters.
    pub fn manager_kubeconfig(&self, url: &str) -> String {
        let [certificate, key] = [&self.manager.certificate, &self.manager.key].map(|pem| STANDARD.encode(pem));
        let pair = format!("client-certificate-data: {certificate}\n    client-key-data: {key}");
        kubeconfig_of(url, Some(&self.ca), MANAGER, &pair)
    }

    fn tokens(&self) -> String {
        let line = |user: &str, group| format!("{},{user},{user},\"{group}\"\n", self.token(user));
        let admin = line(ADMIN, "system:masters");
        let nodes = nodes().map(|name| line(&node_user(&name), "system:nodes"));
        std::iter::once(admin).chain(nodes).collect()
    }
}

impl Pair {
    fn of_client(user: &str, groups: &[&str], valid: Option<Duration>, issuer: &Issuer<'_, KeyPair>) -> Result<Self> {
        let key = KeyPair::generate().with_context(|| format!("making the key of {user}"))?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        for group in groups {
            params.distinguished_name.push(DnType::OrganizationName, *group);
        }
        if let Some(valid) = valid {
            let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH)? + valid;
            params.not_after = date_time_ymd(1970, 1, 1) + since_epoch;
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params
            .signed_by(&key, issuer)
            .with_context(|| format!("making the certificate of {user}"))?;
        Ok(Self {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }
}
