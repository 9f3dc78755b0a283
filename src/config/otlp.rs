//! Validates the settings for the export of traces.

use std::path::Path;

use percent_encoding::percent_decode_str;
use tonic::{
    metadata::{AsciiMetadataKey, AsciiMetadataValue, MetadataMap},
    transport::{Certificate, ClientTlsConfig, Endpoint},
};

use crate::{cli::NodeFlags, model::problem::Problem, otlp::OtlpCollector};

/// The collector of traces, if there is one.
///
/// # Errors
/// When its URL, the certificates or the headers are wrong.
pub(super) fn collector(flags: &NodeFlags) -> Result<Option<OtlpCollector>, Problem> {
    let Some(url) = flags.otlp_endpoint.as_deref() else {
        return Ok(None);
    };
    Ok(Some(OtlpCollector {
        endpoint: endpoint(url, flags.otlp_ca_file.as_deref())?,
        headers: headers(flags.otlp_headers.as_deref().unwrap_or_default())?,
    }))
}

fn endpoint(url: &str, ca_file: Option<&Path>) -> Result<Endpoint, Problem> {
    let problem = |why: &str| {
        Problem::usage(
            format!("OTEL_EXPORTER_OTLP_ENDPOINT={url}: {why}"),
            "set OTEL_EXPORTER_OTLP_ENDPOINT to the gRPC address of an OpenTelemetry collector, such as http://127.0.0.1:4317",
        )
    };
    let endpoint = Endpoint::from_shared(url.to_owned()).map_err(|_| problem("it is not a URL"))?;
    let uri = endpoint.uri();
    match (uri.scheme_str(), uri.authority()) {
        (Some("http"), Some(_)) => Ok(endpoint),
        (Some("https"), Some(_)) => with_tls(endpoint, url, ca_file),
        _ => Err(problem("it has no scheme and host")),
    }
}

/// Verifies the collector by the certificates of this file, or else by those of the system.
fn with_tls(endpoint: Endpoint, url: &str, ca_file: Option<&Path>) -> Result<Endpoint, Problem> {
    let tls = match ca_file {
        None => ClientTlsConfig::new().with_native_roots(),
        Some(path) => {
            let pem = std::fs::read(path).map_err(|error| wrong_ca_file(path, &error.to_string()))?;
            if !pem.windows(BEGIN.len()).any(|bytes| bytes == BEGIN) {
                return Err(wrong_ca_file(path, "it has no certificate in PEM format"));
            }
            ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem))
        }
    };
    endpoint.tls_config(tls).map_err(|error| {
        let why = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        match ca_file {
            Some(path) => wrong_ca_file(path, &why),
            None => Problem::configuration(
                format!("OTEL_EXPORTER_OTLP_ENDPOINT={url}: no certificates of authorities for TLS: {why}"),
                "install the package ca-certificates, or set OTEL_EXPORTER_OTLP_CERTIFICATE",
            ),
        }
    })
}

/// Start of a certificate.
const BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";

fn wrong_ca_file(path: &Path, why: &str) -> Problem {
    Problem::configuration(
        format!("OTEL_EXPORTER_OTLP_CERTIFICATE={}: {why}", path.display()),
        "set OTEL_EXPORTER_OTLP_CERTIFICATE to a PEM file with the certificates of the authorities that the collector's certificate is signed by",
    )
}

/// Parses headers in the form of `OTEL_EXPORTER_OTLP_HEADERS`. An error does not contain a value: it may be secret.
fn headers(text: &str) -> Result<MetadataMap, Problem> {
    let mut headers = MetadataMap::new();
    for header in text.split(',').map(str::trim).filter(|header| !header.is_empty()) {
        let (key, value) = header
            .split_once('=')
            .ok_or_else(|| wrong_header("a header has no ="))?;
        let key = key.trim().to_lowercase();
        let name = AsciiMetadataKey::from_bytes(key.as_bytes())
            .map_err(|_| wrong_header(&format!("{key:?} is no name of a header")))?;
        let value = percent_decode_str(value.trim()).decode_utf8_lossy();
        let mut value = AsciiMetadataValue::try_from(&*value)
            .map_err(|_| wrong_header(&format!("the value of {key} is not printable ASCII")))?;
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Ok(headers)
}

fn wrong_header(why: &str) -> Problem {
    Problem::usage(
        format!("OTEL_EXPORTER_OTLP_HEADERS: {why}"),
        "set OTEL_EXPORTER_OTLP_HEADERS to KEY=VALUE, several separated by commas; special characters of a value are percent-encoded",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_parsed_as_in_opentelemetry_and_secret() {
        let headers = headers("Authorization=Bearer%20a%2Cb, x-tenant = one,").unwrap();
        assert_eq!(headers.get("authorization").unwrap(), "Bearer a,b");
        assert_eq!(headers.get("x-tenant").unwrap(), "one");
        assert!(!format!("{headers:?}").contains("Bearer"), "{headers:?}");
    }

    #[test]
    fn error_about_a_header_does_not_contain_its_value() {
        for text in ["s3cret", "na me=s3cret", "token=s3cret%0A"] {
            let problem = headers(text).unwrap_err();
            assert!(!problem.to_string().contains("s3cret"), "{problem}");
        }
    }
}
