//! Pictures of the collector's graph.

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::{error, json_answer, stopping};
use crate::gc::picture::{Answer, AskPicture};

/// Where a picture is asked for, with `?uid=` and a UID or without.
pub const PATH: &str = "/v1/gc/graph";

/// The question for a picture around a UID, which may be any text, or of what is not idle.
pub fn question(uid: Option<&str>) -> String {
    match uid {
        Some(uid) => format!("{PATH}?uid={}", utf8_percent_encode(uid, NON_ALPHANUMERIC)),
        None => PATH.to_owned(),
    }
}

/// The answer of this collector.
pub(super) async fn answer(collector: Option<&AskPicture>, query: Option<&str>) -> Response<Full<Bytes>> {
    let Some(ask) = collector else {
        return error(
            StatusCode::NOT_FOUND,
            "this agent does not collect: no garbage collector of owner references runs in it",
        );
    };
    let uid = match query.map(|query| query.strip_prefix("uid=")) {
        None => None,
        Some(Some(uid)) if !uid.is_empty() => Some(percent_decode_str(uid).decode_utf8_lossy().into_owned()),
        Some(_) => {
            return error(
                StatusCode::BAD_REQUEST,
                "a picture is asked for with a UID or without, not with an empty one",
            );
        }
    };
    match ask(uid.clone()).await {
        Answer::Picture(picture) => json_answer(&picture),
        Answer::Unknown => error(
            StatusCode::NOT_FOUND,
            &format!(
                "the collector knows no owner and no dependent with UID {:?}; an object that is neither, and is not being \
                deleted, has no place in its graph",
                uid.unwrap_or_default()
            ),
        ),
        Answer::Stopping => stopping(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::FutureExt as _;
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::gc::{
        graph::{Graph, Observed},
        picture::Picture,
    };

    /// Of one object that is being deleted, with this UID.
    fn collector(uid: &str) -> AskPicture {
        let mut graph = Graph::default();
        let kind = graph.kinds.id("", "Pod").unwrap();
        let object = Observed {
            uid: uid.to_owned(),
            deleting: true,
            ..Observed::default()
        };
        graph.observe(kind, &object);
        Arc::new(move |uid| {
            let picture = match uid {
                Some(uid) => Picture::around(&graph, &uid),
                None => Some(Picture::of_all(&graph)),
            };
            std::future::ready(picture.map_or(Answer::Unknown, Answer::Picture)).boxed()
        })
    }

    async fn asked(collector: Option<&AskPicture>, question: &str) -> (u16, String) {
        let query = question.strip_prefix(PATH).unwrap().strip_prefix('?');
        let answer = answer(collector, query).await;
        let code = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (code, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn a_uid_arrives_as_it_was_given_whatever_it_holds() {
        for uid in ["0b9a8230-aace-4480-91d0-db24e46eb609", "a b&uid=c%20?\"\n#é+"] {
            let collector = collector(uid);
            for question in [question(Some(uid)), question(None)] {
                let (code, body) = asked(Some(&collector), &question).await;
                assert_eq!(code, 200, "{body}");
                let picture: Picture = serde_json::from_str(&body).unwrap();
                assert_eq!(picture.objects[0].uid, uid);
            }
        }
    }

    #[tokio::test]
    async fn where_there_is_no_picture_the_reason_is_told() {
        let collector = collector("a");
        let (code, body) = asked(Some(&collector), &question(Some("b"))).await;
        assert!(code == 404 && body.contains("no dependent with UID"), "{code} {body}");
        let (code, body) = asked(Some(&collector), &question(Some(""))).await;
        assert!(code == 400 && body.contains("an empty one"), "{code} {body}");
        let (code, body) = asked(None, &question(None)).await;
        assert!(
            code == 404 && body.contains("this agent does not collect"),
            "{code} {body}"
        );
    }
}
