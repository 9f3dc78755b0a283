//! Builds the exporter of traces. The library itself reads the other variables `OTEL_EXPORTER_OTLP_*`, such as the headers.

use std::{fs, path::Path, time::Duration};

use opentelemetry_otlp::{RetryPolicy, SpanExporter, WithExportConfig as _, WithTonicConfig as _};
use tonic::transport::{Certificate, ClientTlsConfig};

use crate::{cli::NodeFlags, model::problem::Problem};

/// Longest export of a batch, with all retries.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(30);
const HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// The exporter to the collector of traces, if there is one.
///
/// # Errors
/// When its URL, the certificates or the headers are wrong.
pub(super) fn exporter(flags: &NodeFlags) -> Result<Option<SpanExporter>, Problem> {
    let Some(url) = flags.otlp_endpoint.as_deref() else {
        return Ok(None);
    };
    let headers = std::env::var(HEADERS).unwrap_or_default();
    let is_header = |pair: &str| {
        let name = pair.split_once('=').map(|(name, _)| name.trim());
        name.is_some_and(|name| http::HeaderName::try_from(name).is_ok())
    };
    // The library leaves wrong ones out. A value may be secret.
    if headers
        .split(',')
        .any(|pair| !pair.trim().is_empty() && !is_header(pair))
    {
        return Err(wrong(HEADERS, "a part is not NAME=VALUE"));
    }
    let retries = RetryPolicy::recommended()
        .with_initial_delay(Duration::from_secs(1))
        .with_max_delay(Duration::from_secs(4));
    let mut exporter = SpanExporter::builder()
        .with_tonic()
        .with_endpoint(url)
        .with_timeout(EXPORT_TIMEOUT)
        .with_retry_policy(retries);
    if url.starts_with("https://") {
        exporter = exporter.with_tls_config(tls(flags.otlp_ca_file.as_deref())?);
    } else if !url.starts_with("http://") {
        return Err(wrong(ENDPOINT, &format!("{url}: it has no scheme and host")));
    }
    let exporter = exporter.build().map_err(|error| wrong(ENDPOINT, &error.to_string()));
    exporter.map(Some)
}

/// Verifies the collector by the certificates of this file, or else by those of the system.
fn tls(ca_file: Option<&Path>) -> Result<ClientTlsConfig, Problem> {
    let Some(path) = ca_file else {
        return Ok(ClientTlsConfig::new().with_native_roots());
    };
    let pem = fs::read(path).map_err(|error| {
        let why = format!("{}: {error}", path.display());
        wrong("OTEL_EXPORTER_OTLP_CERTIFICATE", &why)
    })?;
    Ok(ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)))
}

fn wrong(variable: &str, why: &str) -> Problem {
    Problem::usage(
        format!("{variable}: {why}"),
        &format!("correct {variable}: see Rarely needed in docs/reference/configuration.md"),
    )
}
