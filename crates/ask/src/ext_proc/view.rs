//! Reads the messages of Envoy from their bytes without copying anything.
//!
//! There are two to four for each request, with some ten headers, so owned values would cost more
//! than the decision. Unknown fields are skipped. The generated messages (`wire`) have the same
//! fields; a test compares both.

use super::wire::BodySendMode;
use bytes::Bytes;
use evenkeel_grpc::protobuf::{ProtobufResult, ProtobufSource};

/// The attribute with the address of the client, as Envoy has found it.
const SOURCE: &[u8] = b"source.address";
/// The attribute that says how Envoy came to a response.
const CODE_DETAILS: &[u8] = b"response.code_details";
/// Where Envoy lists the backends that may be chosen: a namespace of metadata, and its key.
const SUBSET_NAMESPACE: &[u8] = b"envoy.lb.subset_hint";
const SUBSET: &[u8] = b"x-gateway-destination-endpoint-subset";

/// One message of Envoy.
#[derive(Debug, Default, PartialEq)]
pub struct EnvoyMessage<'a> {
    /// The attribute `source.address`, if `request_attributes` of the filter contains it.
    pub source: Option<&'a [u8]>,
    /// The attribute `response.code_details`, if `response_attributes` contains it.
    pub code_details: Option<&'a [u8]>,
    /// The metadata of the request, encoded.
    metadata: Option<&'a [u8]>,
    /// Whether Envoy waits for no answer.
    pub observes: bool,
    /// How the bodies of request and response are sent, if the message says so.
    pub modes: Option<[BodySendMode; 2]>,
    /// The part of the request or response in it; `None` if that is unknown.
    pub part: Option<MessagePart<'a>>,
}

/// The part of a request or of a response that a message contains.
#[derive(Debug, PartialEq)]
pub enum MessagePart<'a> {
    RequestHeaders(HeadersView<'a>),
    ResponseHeaders(HeadersView<'a>),
    RequestBody(BodyView<'a>),
    ResponseBody(BodyView<'a>),
    RequestTrailers,
    ResponseTrailers,
}

/// Headers, pseudo-headers among them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HeadersView<'a> {
    list: &'a [u8],
    /// Whether no body follows.
    pub end_of_stream: bool,
}

/// A piece of a body.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BodyView<'a> {
    pub body: &'a [u8],
    /// Whether it is the last piece.
    pub end_of_stream: bool,
}

impl<'a> EnvoyMessage<'a> {
    /// Reads a message.
    pub fn decode(bytes: &'a [u8]) -> ProtobufResult<EnvoyMessage<'a>> {
        let mut message = EnvoyMessage::default();
        let mut fields = ProtobufSource(bytes);
        while let Some((field, kind)) = fields.tag()? {
            match field {
                2 | 3 => {
                    let headers = HeadersView::decode(fields.bytes(kind)?)?;
                    message.part = Some(match field {
                        2 => MessagePart::RequestHeaders(headers),
                        _ => MessagePart::ResponseHeaders(headers),
                    });
                }
                4 | 5 => {
                    let body = BodyView::decode(fields.bytes(kind)?)?;
                    message.part = Some(match field {
                        4 => MessagePart::RequestBody(body),
                        _ => MessagePart::ResponseBody(body),
                    });
                }
                6 | 7 => {
                    fields.bytes(kind)?;
                    message.part = Some(match field {
                        6 => MessagePart::RequestTrailers,
                        _ => MessagePart::ResponseTrailers,
                    });
                }
                8 => message.metadata = Some(fields.bytes(kind)?),
                9 => message.read_attributes(fields.bytes(kind)?)?,
                10 => message.observes = fields.number(kind)? != 0,
                11 => message.modes = Some(modes(fields.bytes(kind)?)?),
                _ => fields.skip(field, kind)?,
            }
        }
        Ok(message)
    }

    /// Reads the attributes of one filter.
    fn read_attributes(&mut self, entry: &'a [u8]) -> ProtobufResult<()> {
        let (_, Some(attributes)) = map_entry(entry)? else { return Ok(()) };
        each_entry(attributes, |name, value| {
            match name {
                SOURCE => self.source = string_value(value)?,
                CODE_DETAILS => self.code_details = string_value(value)?,
                _ => {}
            }
            Ok(())
        })
    }

    /// The backends that may be chosen, as Envoy names them; `None` if any may.
    pub fn subset(&self) -> ProtobufResult<Option<Vec<&'a [u8]>>> {
        let Some(metadata) = self.metadata else { return Ok(None) };
        let mut subset = None;
        each_entry(metadata, |namespace, entries| {
            if namespace != SUBSET_NAMESPACE {
                return Ok(());
            }
            each_entry(entries, |name, value| {
                if name == SUBSET {
                    subset = Some(texts(value)?);
                }
                Ok(())
            })
        })?;
        Ok(subset)
    }
}

impl<'a> HeadersView<'a> {
    fn decode(bytes: &'a [u8]) -> ProtobufResult<HeadersView<'a>> {
        let mut headers = HeadersView::default();
        let mut fields = ProtobufSource(bytes);
        while let Some((field, kind)) = fields.tag()? {
            match field {
                1 => headers.list = fields.bytes(kind)?,
                3 => headers.end_of_stream = fields.number(kind)? != 0,
                _ => fields.skip(field, kind)?,
            }
        }
        Ok(headers)
    }

    /// Copies them. The bytes in which a message comes are part of a larger buffer, which a request
    /// that waits must not keep.
    pub fn to_owned(self) -> OwnedHeaders {
        OwnedHeaders(Bytes::copy_from_slice(self.list))
    }
}

/// Headers with bytes of their own.
pub struct OwnedHeaders(Bytes);

impl OwnedHeaders {
    /// The names and values, in order. Ends after the first error.
    pub fn iter(&self) -> impl Iterator<Item = ProtobufResult<(&[u8], &[u8])>> {
        let mut fields = ProtobufSource(&self.0);
        std::iter::from_fn(move || {
            let next = next_header(&mut fields).transpose();
            if let Some(Err(_)) = next {
                fields = ProtobufSource(&[]);
            }
            next
        })
    }

    /// The same bytes, which must be some of these headers.
    pub fn share(&self, value: &[u8]) -> Bytes {
        self.0.slice_ref(value)
    }
}

/// The name and the value of the next header.
fn next_header<'a>(
    fields: &mut ProtobufSource<'a>,
) -> ProtobufResult<Option<(&'a [u8], &'a [u8])>> {
    while let Some((field, kind)) = fields.tag()? {
        if field != 1 {
            fields.skip(field, kind)?;
            continue;
        }
        let (mut name, mut value, mut raw): (&[u8], &[u8], &[u8]) = (&[], &[], &[]);
        let mut fields = ProtobufSource(fields.bytes(kind)?);
        while let Some((field, kind)) = fields.tag()? {
            match field {
                1 => name = fields.bytes(kind)?,
                2 => value = fields.bytes(kind)?,
                3 => raw = fields.bytes(kind)?,
                _ => fields.skip(field, kind)?,
            }
        }
        return Ok(Some((name, if raw.is_empty() { value } else { raw })));
    }
    Ok(None)
}

impl<'a> BodyView<'a> {
    fn decode(bytes: &'a [u8]) -> ProtobufResult<BodyView<'a>> {
        let mut piece = BodyView::default();
        let mut fields = ProtobufSource(bytes);
        while let Some((field, kind)) = fields.tag()? {
            match field {
                1 => piece.body = fields.bytes(kind)?,
                2 => piece.end_of_stream = fields.number(kind)? != 0,
                _ => fields.skip(field, kind)?,
            }
        }
        Ok(piece)
    }
}

type MapEntry<'a> = (&'a [u8], Option<&'a [u8]>);

/// An entry of a map: its key, and its value if there is one.
fn map_entry(entry: &[u8]) -> ProtobufResult<MapEntry<'_>> {
    let (mut key, mut value, mut fields) = (&[][..], None, ProtobufSource(entry));
    while let Some((field, kind)) = fields.tag()? {
        match field {
            1 => key = fields.bytes(kind)?,
            2 => value = Some(fields.bytes(kind)?),
            _ => fields.skip(field, kind)?,
        }
    }
    Ok((key, value))
}

/// Calls `handle` with each key and value of a message that has a map as its first field, such as
/// `google.protobuf.Struct`.
fn each_entry<'a>(
    message: &'a [u8],
    mut handle: impl FnMut(&'a [u8], &'a [u8]) -> ProtobufResult<()>,
) -> ProtobufResult<()> {
    let mut fields = ProtobufSource(message);
    while let Some((field, kind)) = fields.tag()? {
        if field != 1 {
            fields.skip(field, kind)?;
        } else if let (key, Some(value)) = map_entry(fields.bytes(kind)?)? {
            handle(key, value)?;
        }
    }
    Ok(())
}

/// The text of a `google.protobuf.Value`; `None` if it is something else.
fn string_value(value: &[u8]) -> ProtobufResult<Option<&[u8]>> {
    let (mut text, mut fields) = (None, ProtobufSource(value));
    while let Some((field, kind)) = fields.tag()? {
        match field {
            3 => text = Some(fields.bytes(kind)?),
            _ => fields.skip(field, kind)?,
        }
    }
    Ok(text)
}

/// The texts in a `google.protobuf.Value`: a list of texts, or one with commas.
fn texts(value: &[u8]) -> ProtobufResult<Vec<&[u8]>> {
    let (mut texts, mut fields) = (Vec::new(), ProtobufSource(value));
    while let Some((field, kind)) = fields.tag()? {
        match field {
            3 => texts.extend(split(fields.bytes(kind)?)),
            6 => {
                let mut items = ProtobufSource(fields.bytes(kind)?);
                while let Some((field, kind)) = items.tag()? {
                    match field {
                        1 => {
                            let text = string_value(items.bytes(kind)?)?;
                            texts.extend(text.into_iter().flat_map(split));
                        }
                        _ => items.skip(field, kind)?,
                    }
                }
            }
            _ => fields.skip(field, kind)?,
        }
    }
    Ok(texts)
}

fn split(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|text| !text.is_empty())
}

fn modes(bytes: &[u8]) -> ProtobufResult<[BodySendMode; 2]> {
    let (mut modes, mut fields) = ([BodySendMode::None; 2], ProtobufSource(bytes));
    while let Some((field, kind)) = fields.tag()? {
        match field {
            1 | 2 => {
                let mode = i32::try_from(fields.number(kind)?).unwrap_or(0);
                let mode = BodySendMode::try_from(mode).unwrap_or(BodySendMode::None);
                modes[usize::from(field == 2)] = mode;
            }
            _ => fields.skip(field, kind)?,
        }
    }
    Ok(modes)
}

#[cfg(test)]
pub mod tests {
    use super::super::wire::processing_request::Request;
    use super::super::wire::{
        HeaderMap, HeaderValue, HttpBody, HttpHeaders, HttpTrailers, Metadata, ProcessingRequest,
        ProtocolConfiguration,
    };
    use super::*;
    use evenkeel_fuzz::fuzz;
    use prost::Message;
    use prost_types::value::Kind;
    use prost_types::{ListValue, Struct, Value};

    impl<'a> HeadersView<'a> {
        /// The headers in these bytes.
        pub fn of(list: &'a [u8]) -> HeadersView<'a> {
            HeadersView { list, end_of_stream: false }
        }
    }

    /// The bytes of these headers: names, values as texts, and raw values.
    pub fn headers<'a>(list: impl Iterator<Item = (&'a str, &'a str, &'a [u8])>) -> Vec<u8> {
        let headers = list.map(|(key, value, raw)| HeaderValue {
            key: key.to_owned(),
            value: value.to_owned(),
            raw_value: Bytes::copy_from_slice(raw),
        });
        HeaderMap { headers: headers.collect() }.encode_to_vec()
    }

    fn with_attribute(name: &str, kind: Kind) -> ProcessingRequest {
        let of = |key: &str, kind| {
            (key.to_owned(), Struct { fields: [(name.to_owned(), Value { kind })].into() })
        };
        let attributes = [of("envoy.filters.http.ext_proc", Some(kind))].into();
        ProcessingRequest { attributes, ..ProcessingRequest::default() }
    }

    #[test]
    fn the_client_is_read_from_the_attributes_of_the_filter() {
        let read = |name: &str, kind| {
            let bytes = with_attribute(name, kind).encode_to_vec();
            EnvoyMessage::decode(&bytes).expect("a message").source.map(<[u8]>::to_vec)
        };
        let address = || Kind::StringValue("192.0.2.7:443".to_owned());
        assert_eq!(read("source.address", address()), Some(b"192.0.2.7:443".to_vec()));
        assert_eq!(read("source.port", address()), None);
        assert_eq!(read("source.address", Kind::NumberValue(1.0)), None);
        assert_eq!(EnvoyMessage::decode(&[]).expect("empty").source, None);
    }

    #[test]
    fn the_details_of_a_response_are_read_from_its_attributes() {
        let details = Kind::StringValue("via_upstream".to_owned());
        let bytes = with_attribute("response.code_details", details).encode_to_vec();
        let message = EnvoyMessage::decode(&bytes).expect("a message");
        assert_eq!(message.code_details, Some(&b"via_upstream"[..]));
    }

    #[test]
    fn the_backends_that_may_be_chosen_are_a_list_or_a_text_with_commas() {
        let text = |text: &str| Kind::StringValue(text.to_owned());
        let read = |namespace: &str, kind| {
            let value = Value { kind: Some(kind) };
            let name = "x-gateway-destination-endpoint-subset".to_owned();
            let filter_metadata =
                [(namespace.to_owned(), Struct { fields: [(name, value)].into() })].into();
            let metadata_context = Some(Metadata { filter_metadata });
            let message = ProcessingRequest { metadata_context, ..ProcessingRequest::default() };
            let bytes = message.encode_to_vec();
            let message = EnvoyMessage::decode(&bytes).expect("a message");
            let subset = message.subset().expect("sound");
            subset.map(|all| all.into_iter().map(<[u8]>::to_vec).collect::<Vec<_>>())
        };
        let hint = "envoy.lb.subset_hint";
        let values = ["10.0.0.1:80", "10.0.0.2:80"].map(|at| Value { kind: Some(text(at)) });
        let list = Kind::ListValue(ListValue { values: values.into() });
        let both = Some(vec![b"10.0.0.1:80".to_vec(), b"10.0.0.2:80".to_vec()]);
        assert_eq!(read(hint, list.clone()), both);
        assert_eq!(read(hint, text("10.0.0.1:80, 10.0.0.2:80")), both);
        assert_eq!(read(hint, Kind::ListValue(ListValue::default())), Some(Vec::new()));
        assert_eq!(read("envoy.lb", list), None);
        assert_eq!(EnvoyMessage::decode(&[]).expect("empty").subset(), Ok(None));
    }

    /// A message with this part, as it is and as it is read.
    fn compare(request: Request, observes: bool, modes: Option<[i32; 2]>) {
        let config = modes.map(|[request_body_mode, response_body_mode]| ProtocolConfiguration {
            request_body_mode,
            response_body_mode,
        });
        let message = ProcessingRequest {
            request: Some(request),
            observability_mode: observes,
            protocol_config: config,
            ..ProcessingRequest::default()
        };
        let bytes = message.encode_to_vec();
        let read = EnvoyMessage::decode(&bytes).expect("a message");
        assert_eq!(read.observes, observes);
        let modes = config.map(|config| [config.request_body_mode(), config.response_body_mode()]);
        assert_eq!(read.modes, modes);
        match (message.request.expect("a part"), read.part.expect("a part")) {
            (Request::RequestHeaders(is), MessagePart::RequestHeaders(read))
            | (Request::ResponseHeaders(is), MessagePart::ResponseHeaders(read)) => {
                assert_eq!(is.end_of_stream, read.end_of_stream);
                let is = is.headers.unwrap_or_default().headers.into_iter();
                let is = is.map(|HeaderValue { key, value, raw_value }| {
                    let value = if raw_value.is_empty() { value.into() } else { raw_value };
                    (key.into_bytes(), value.to_vec())
                });
                let owned = read.to_owned();
                let read = owned.iter().map(|header| header.expect("a header"));
                let read = read.map(|(name, value)| (name.to_vec(), value.to_vec()));
                assert!(is.eq(read));
            }
            (Request::RequestBody(is), MessagePart::RequestBody(read))
            | (Request::ResponseBody(is), MessagePart::ResponseBody(read)) => {
                assert_eq!((&is.body[..], is.end_of_stream), (read.body, read.end_of_stream));
            }
            (Request::RequestTrailers(_), MessagePart::RequestTrailers)
            | (Request::ResponseTrailers(_), MessagePart::ResponseTrailers) => {}
            (is, read) => panic!("{is:?} is read as {read:?}"),
        }
    }

    #[test]
    fn fuzz_messages_are_read_as_the_generated_messages_read_them() {
        type Generated = ((u8, u8, u8), bool, Vec<(String, String, Vec<u8>)>);
        fuzz().with_type::<Generated>().for_each(|((kind, first, second), flag, list)| {
            let modes = flag.then_some([i32::from(*first) - 1, i32::from(*second) - 1]);
            let body = || list.first().map_or(Bytes::new(), |(_, _, raw)| raw.clone().into());
            let body = || HttpBody { body: body(), end_of_stream: *flag };
            let headers = || {
                let headers = list.iter().map(|(key, value, raw)| HeaderValue {
                    key: key.clone(),
                    value: value.clone(),
                    raw_value: raw.clone().into(),
                });
                let headers = Some(HeaderMap { headers: headers.collect() });
                HttpHeaders { headers, end_of_stream: *flag }
            };
            let request = match kind % 6 {
                0 => Request::RequestHeaders(headers()),
                1 => Request::ResponseHeaders(headers()),
                2 => Request::RequestBody(body()),
                3 => Request::ResponseBody(body()),
                4 => Request::RequestTrailers(HttpTrailers {}),
                _ => Request::ResponseTrailers(HttpTrailers {}),
            };
            compare(request, *flag, modes);
        });
    }

    #[test]
    fn fuzz_any_bytes_are_read_or_refused() {
        fuzz().for_each(|bytes: &[u8]| {
            let Ok(message) = EnvoyMessage::decode(bytes) else { return };
            if let Some(MessagePart::RequestHeaders(headers)) = message.part {
                headers.to_owned().iter().for_each(drop);
            }
        });
    }
}
