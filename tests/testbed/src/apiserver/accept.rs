//! In which form a client takes an answer: the first of its Accept header that can be served.

use super::error::ApiError;

/// How an answer is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Media {
    Json,
    /// Protobuf, in which only metadata and refusals are written here.
    Protobuf,
}

/// How much of an object an answer holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    Whole,
    /// Its metadata, asked for as that of one object.
    Metadata,
    /// Its metadata, asked for as that of a list.
    MetadataList,
}

/// A form of answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// How it is written.
    pub media: Media,
    /// How much of an object it holds.
    pub shape: Shape,
}

/// One of the alternatives of an Accept header.
struct Clause<'a> {
    media: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
}

impl<'a> Clause<'a> {
    fn all(accept: &'a str) -> impl Iterator<Item = Self> {
        accept.split(',').map(|part| {
            let mut words = part.split(';').map(str::trim);
            let media = words.next().unwrap_or_default();
            let parameters = words.filter_map(|word| word.split_once('=')).collect();
            Clause { media, parameters }
        })
    }

    fn parameter(&self, name: &str) -> &'a str {
        let found = self.parameters.iter().find(|(key, _)| *key == name);
        found.map_or("", |(_, value)| value)
    }

    fn media(&self) -> Option<Media> {
        match self.media {
            "" | "*/*" | "application/json" => Some(Media::Json),
            "application/vnd.kubernetes.protobuf" => Some(Media::Protobuf),
            _ => None,
        }
    }

    /// The kind that the answer is to be converted to, with its group and version.
    fn wanted(&self) -> (&'a str, &'a str, &'a str) {
        (self.parameter("as"), self.parameter("g"), self.parameter("v"))
    }
}

impl Media {
    /// How a refusal is written: never in a form that was asked for objects only.
    pub fn of_refusal(accept: &str) -> Self {
        Clause::all(accept)
            .filter(|clause| clause.wanted().0.is_empty())
            .find_map(|clause| clause.media())
            .unwrap_or(Media::Json)
    }
}

impl Form {
    /// All of an object, in JSON.
    pub const PLAIN: Form = Form {
        media: Media::Json,
        shape: Shape::Whole,
    };

    /// The form in which a client wants objects.
    pub fn parse(accept: &str) -> Result<Self, ApiError> {
        Clause::all(accept)
            .find_map(|clause| {
                let media = clause.media()?;
                let shape = match clause.wanted() {
                    ("", _, _) => Shape::Whole,
                    ("PartialObjectMetadata", "meta.k8s.io", "v1") => Shape::Metadata,
                    ("PartialObjectMetadataList", "meta.k8s.io", "v1") => Shape::MetadataList,
                    _ => return None,
                };
                // Whole objects in protobuf are more than this server knows of them.
                (media == Media::Json || shape != Shape::Whole).then_some(Form { media, shape })
            })
            .ok_or_else(ApiError::not_acceptable)
    }
}

/// The content type of discovery, which is also how it is asked for.
pub const DISCOVERY: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Whether a client takes discovery in the aggregated form, at any position in the header.
pub fn wants_discovery(accept: &str) -> bool {
    Clause::all(accept).any(|clause| {
        clause.media() == Some(Media::Json) && clause.wanted() == ("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2")
    })
}
