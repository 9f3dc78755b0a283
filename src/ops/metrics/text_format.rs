//! The format that a scraper accepts: OpenMetrics, or the older Prometheus text format.

use http::{HeaderMap, header};

/// Format of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.0.
    OpenMetrics,
    /// Prometheus text format 0.0.4.
    Prometheus,
}

// === impl Format ===

impl Format {
    /// OpenMetrics if the request accepts it, as Prometheus does since 2.5; else the format that every scraper reads.
    pub fn accepted(headers: &HeaderMap) -> Self {
        let accepts = |value: &header::HeaderValue| {
            value
                .to_str()
                .is_ok_and(|it| it.contains("application/openmetrics-text"))
        };
        if headers.get_all(header::ACCEPT).iter().any(accepts) {
            Self::OpenMetrics
        } else {
            Self::Prometheus
        }
    }

    /// Value of the `Content-Type` header.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// The page in this format; `page` is OpenMetrics. The samples are the same in both. The older format names a family like
    /// its samples, has no units, and has no type for information.
    pub fn render(self, page: String) -> String {
        if self == Self::OpenMetrics {
            return page;
        }
        let mut out = String::with_capacity(page.len());
        let lines = page.lines();
        // Help comes before the type, and the name depends on the type.
        let mut help = None;
        for line in lines {
            if let Some(text) = line.strip_prefix("# HELP ") {
                help = text.split_once(' ').map(|(_, text)| text);
            } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|text| text.split_once(' ')) {
                let (suffix, kind) = match kind {
                    "counter" => ("_total", "counter"),
                    "info" => ("_info", "gauge"),
                    kind => ("", kind),
                };
                if let Some(help) = help.take() {
                    out.extend(["# HELP ", name, suffix, " ", help, "\n"]);
                }
                out.extend(["# TYPE ", name, suffix, " ", kind, "\n"]);
            } else if !line.starts_with('#') {
                out.extend([line, "\n"]);
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepting(accept: &'static str) -> Format {
        let headers = [(header::ACCEPT, header::HeaderValue::from_static(accept))];
        Format::accepted(&headers.into_iter().collect())
    }

    #[test]
    fn prometheus_gets_openmetrics_and_older_scrapers_get_text() {
        let prometheus = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(accepting(prometheus), Format::OpenMetrics);
        assert_eq!(accepting("text/plain;version=0.0.4"), Format::Prometheus);
        assert_eq!(Format::accepted(&HeaderMap::new()), Format::Prometheus);
    }

    #[test]
    fn older_format_names_families_like_their_samples() {
        let page = "# HELP a_seconds Time.\n# TYPE a_seconds counter\n# UNIT a_seconds seconds\na_seconds_total 1.5\n\
                    # HELP b Build.\n# TYPE b info\nb_info{version=\"1\"} 1\n# EOF\n";
        let text = "# HELP a_seconds_total Time.\n# TYPE a_seconds_total counter\na_seconds_total 1.5\n\
                    # HELP b_info Build.\n# TYPE b_info gauge\nb_info{version=\"1\"} 1\n";
        assert_eq!(Format::Prometheus.render(page.to_owned()), text);
        assert_eq!(Format::OpenMetrics.render(page.to_owned()), page);
    }
}
