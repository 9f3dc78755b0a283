//! Expiry of credentials that show it: certificates and service account tokens.

use std::{path::Path, time::Duration};

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use jiff::{SignedDuration, Timestamp};
use kube::config::AuthInfo;
use rustls::pki_types::{CertificateDer, UnixTime, pem::PemObject as _};
use secrecy::ExposeSecret as _;
use serde_json::Value;
use tower::BoxError;
use webpki::{EndEntityCert, Error, KeyUsage};

use super::kubeconfig::read_kubeconfig_here;

/// Credentials that expire within this time get a warning.
pub const WARNING_PERIOD: SignedDuration = SignedDuration::from_hours(7 * 24);

/// When credentials expire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expiry {
    /// Kind of the credentials.
    pub credential_kind: &'static str,
    /// When they expire.
    pub expires_at: Timestamp,
}

// === impl Expiry ===

impl Expiry {
    /// Expiry of the credentials in this kubeconfig, on the calling thread; `None` if they do not show it, or cannot be read.
    pub fn of_kubeconfig(path: &Path) -> Option<Self> {
        Self::of_config(&read_kubeconfig_here(path).ok()?).ok().flatten()
    }

    /// Expiry of the credentials in `config`, whose files are read; `None` if they do not show it.
    ///
    /// # Errors
    /// A certificate that cannot be read.
    pub fn of_config(config: &kube::Config) -> Result<Option<Self>, BoxError> {
        let auth = &config.auth_info;
        let pem = match (&auth.client_certificate_data, &auth.client_certificate) {
            (Some(data), _) => Some(STANDARD.decode(data)?),
            (None, Some(file)) => Some(std::fs::read(file).map_err(|error| format!("{file}: {error}"))?),
            (None, None) => None,
        };
        let (credential_kind, expires_at) = match pem {
            Some(pem) => ("a certificate", Some(certificate_expiry(&pem)?)),
            None => ("a token", token_expires_at(auth)),
        };
        Ok(expires_at.map(|expires_at| Self {
            credential_kind,
            expires_at,
        }))
    }
}

/// Whether credentials with this expiry need a warning.
pub fn expires_soon(end: Timestamp, now: Timestamp) -> bool {
    end.duration_since(now) < WARNING_PERIOD
}

/// Expiry of the first certificate, the client's own. webpki, which rustls uses, checks the expiry first: a check at the end
/// of time returns it in its error.
fn certificate_expiry(pem: &[u8]) -> Result<Timestamp, BoxError> {
    const END_OF_TIME: UnixTime = UnixTime::since_unix_epoch(Duration::MAX);
    let der = CertificateDer::from_pem_slice(pem)?;
    let certificate = EndEntityCert::try_from(&der)?;
    let usage = KeyUsage::client_auth();
    match certificate.verify_for_usage(&[], &[], &[], END_OF_TIME, usage, None, None) {
        Err(Error::CertExpired { not_after, .. }) => Ok(Timestamp::from_second(not_after.as_secs().try_into()?)?),
        Err(error) => Err(error.into()),
        Ok(_) => Err("it does not expire".into()),
    }
}

/// A service account token shows its expiry, other tokens do not.
fn token_expires_at(auth: &AuthInfo) -> Option<Timestamp> {
    match (&auth.token, &auth.token_file) {
        (_, Some(file)) => token_expiry(std::fs::read_to_string(file).ok()?.trim()),
        (Some(token), None) => token_expiry(token.expose_secret()),
        (None, None) => None,
    }
}

fn token_expiry(token: &str) -> Option<Timestamp> {
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    let claims: Value = serde_json::from_slice(&claims).ok()?;
    Timestamp::from_second(claims["exp"].as_i64()?).ok()
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    #[test]
    fn end_of_the_first_certificate_is_read_beside_a_key_and_after_expiry() {
        let key = KeyPair::generate().unwrap();
        let until = |year| {
            let mut of = CertificateParams::new(Vec::new()).unwrap();
            of.not_after = date_time_ymd(year, 5, 6);
            of.self_signed(&key).unwrap().pem()
        };
        for (year, end) in [
            (2031, "2031-05-06T00:00:00Z"),
            (1999, "1999-05-06T00:00:00Z"),
            (9999, "9999-05-06T00:00:00Z"),
        ] {
            let pem = [key.serialize_pem(), until(year), until(2040)].concat();
            assert_eq!(certificate_expiry(pem.as_bytes()).unwrap(), end.parse().unwrap());
        }
    }

    #[test]
    fn invalid_certificate_is_an_error_with_its_reason() {
        let empty = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
        for (pem, why) in [("", "no items"), (empty, "BadDer")] {
            let error = certificate_expiry(pem.as_bytes()).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
        }
    }

    #[test]
    fn only_the_end_of_a_service_account_token_is_read() {
        let claims = URL_SAFE_NO_PAD.encode(r#"{"iss":"x","exp":1767225600}"#);
        let end = token_expiry(&format!("e30.{claims}.signature"));
        assert_eq!(end, "2026-01-01T00:00:00Z".parse().ok());
        let endless = URL_SAFE_NO_PAD.encode("{}");
        for other in ["collector", "", "a.b.c", &format!("e30.{endless}.x")] {
            assert_eq!(token_expiry(other), None, "{other}");
        }
    }
}
