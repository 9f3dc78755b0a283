//! Until when credentials are good, where they tell: a certificate does, and a token of a service account.

mod token;

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use jiff::{SignedDuration, Timestamp};
use rustls::pki_types::{CertificateDer, UnixTime, pem::PemObject as _};
use webpki::{EndEntityCert, Error, KeyUsage};

/// From here on their end is worth a warning.
pub const SOON: SignedDuration = SignedDuration::from_hours(7 * 24);

/// The end of credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expiry {
    /// What they are.
    pub of: &'static str,
    /// When they end.
    pub end: Timestamp,
}

// === impl Expiry ===

impl Expiry {
    /// That of the credentials in `config`, whose files are read; nothing if they do not tell.
    ///
    /// # Errors
    /// A certificate that cannot be read.
    pub fn of(config: &kube::Config) -> Result<Option<Self>, String> {
        let auth = &config.auth_info;
        let pem = match (&auth.client_certificate_data, &auth.client_certificate) {
            (Some(data), _) => STANDARD.decode(data).map_err(|error| error.to_string()),
            (None, Some(file)) => std::fs::read(file).map_err(|error| format!("{file}: {error}")),
            (None, None) => {
                let end = token::end(auth);
                return Ok(end.map(|end| Self { of: "a token", end }));
            }
        };
        let end = pem.and_then(|pem| certificate_end(&pem))?;
        Ok(Some(Self {
            of: "a certificate",
            end,
        }))
    }
}

/// Whether credentials that end then are to be renewed by now.
pub fn is_soon(end: Timestamp, now: Timestamp) -> bool {
    end.duration_since(now) < SOON
}

/// The end of the first certificate, which is the client's own. At the end of time it has expired, and that is checked before
/// anything else; rustls, which is to use it, reads it in the same way.
fn certificate_end(pem: &[u8]) -> Result<Timestamp, String> {
    const AT_LAST: UnixTime = UnixTime::since_unix_epoch(Duration::MAX);
    let der = CertificateDer::from_pem_slice(pem).map_err(|error| error.to_string())?;
    let certificate = EndEntityCert::try_from(&der).map_err(|error| error.to_string())?;
    let usage = KeyUsage::client_auth();
    match certificate.verify_for_usage(&[], &[], &[], AT_LAST, usage, None, None) {
        Err(Error::CertExpired { not_after, .. }) => {
            let end = i64::try_from(not_after.as_secs()).map_err(|error| error.to_string())?;
            Timestamp::from_second(end).map_err(|error| error.to_string())
        }
        Err(error) => Err(error.to_string()),
        Ok(_) => Err("it does not expire".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    #[test]
    fn the_end_of_the_first_certificate_is_read_also_beside_a_key_and_when_it_is_over() {
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
            assert_eq!(certificate_end(pem.as_bytes()), Ok(end.parse().unwrap()));
        }
    }

    #[test]
    fn what_is_no_certificate_is_an_error_with_its_reason() {
        let empty = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
        for (pem, why) in [("", "no items"), (empty, "BadDer")] {
            let told = certificate_end(pem.as_bytes()).unwrap_err();
            assert!(told.contains(why), "{told}");
        }
    }
}
