"""The tokens of a document: tokens that begin it, the tokens of its text, and the token that ends it."""
import dataclasses
import json

BATCH = 4096
PROBED = 100  # characters of a text that show the template of a tokenizer


@dataclasses.dataclass(frozen=True)
class DocumentTokens:
    begin: list  # ids before each text
    end: int     # id after each text
    # Ids and names of the control tokens that a text must not contain. Empty: the name of a control token in a text becomes the token.
    control: dict

    def encode(self, tokenizer, documents):
        """Yields the token ids of each document. Raises ValueError if the tokenizer gives a control token for a text that must not
        contain it."""
        for start in range(0, len(documents), BATCH):
            for encoding in tokenizer.encode_batch_fast(documents[start:start + BATCH], add_special_tokens=False):
                self.check(encoding.ids)
                yield self.begin + encoding.ids + [self.end]

    def check(self, ids):
        if self.control.keys().isdisjoint(ids):
            return
        names = ", ".join(sorted(self.control[found] for found in self.control.keys() & set(ids)))
        raise ValueError(f"--special-tokens text: the model of the tokenizer itself gives {names} for a text, expected a tokenizer "
                         "that splits these names (or --special-tokens control)")


def document_tokens(tokenizer, documents, eod_token, bos, config, special_tokens):
    """Returns the DocumentTokens. With special_tokens "text", changes the tokenizer so that it splits the names of control tokens.

    eod_token: name of the token that ends a document. bos: "auto", "on" or "off" (begin_tokens). config: content of
    tokenizer_config.json. special_tokens: "control" or "text". Raises ValueError if the tokenizer does not have a token."""
    tokens = DocumentTokens(begin_tokens(tokenizer, documents, bos, config), end_token(tokenizer, eod_token),
                            {} if special_tokens == "control" else control_tokens(tokenizer))
    if special_tokens == "text":
        tokenizer.encode_special_tokens = True
    return tokens


def special_names(tokenizer):
    """Returns the names of the special tokens by id."""
    return {token: added.content for token, added in tokenizer.get_added_tokens_decoder().items() if added.special}


def named_token(tokenizer, name, flag, purpose):
    """Returns the id of a token. Raises ValueError if the tokenizer does not have it."""
    token = tokenizer.token_to_id(name)
    if token is not None:
        return token
    special = ", ".join(list(special_names(tokenizer).values())[:20]) or "none"
    raise ValueError(f"{flag}: the tokenizer has no token '{name}' to {purpose} documents with, expected the name of one of its tokens "
                     f"(special ones: {special})")


def end_token(tokenizer, name):
    """Returns the id of the token that ends a document."""
    return named_token(tokenizer, name, "--eod-token", "end")


def name_in(config, key):
    """Returns the name of a token in a tokenizer_config.json, which is a text or an object with the key content. Returns None
    without a token."""
    token = config.get(key)
    return token.get("content") if isinstance(token, dict) else token


def template_tokens(tokenizer, documents):
    """Returns the ids that the template in tokenizer.json adds before a text. Reads the first document that has a token."""
    for text in documents:
        encoding = tokenizer.encode(text[:PROBED])
        if 0 in encoding.special_tokens_mask:  # 1 for the tokens of the template
            return encoding.ids[:encoding.special_tokens_mask.index(0)]
    return []


def begin_tokens(tokenizer, documents, bos, config):
    """Returns the ids that begin a document: none with bos "off", and with "auto" the ids that the tokenizer adds before a text. "on"
    is like "auto", but takes the token bos_token of `config` if the tokenizer adds no ids. Raises ValueError without such a token."""
    if bos == "off":
        return []
    ids = template_tokens(tokenizer, documents)
    if ids or bos == "auto":
        return ids
    name = name_in(config, "bos_token")
    if not name:
        raise ValueError("--bos on: the tokenizer adds no token before a text, expected bos_token in the tokenizer_config.json beside "
                         "--tokenizer (or --bos off)")
    return [named_token(tokenizer, name, "--bos", "begin")]


def control_tokens(tokenizer):
    """Returns the special tokens by id, without the token for unknown characters, which a text may contain."""
    model = json.loads(tokenizer.to_str())["model"]
    unknown = model.get("unk_token")
    if model.get("unk_id") is not None:
        unknown = tokenizer.id_to_token(model["unk_id"])
    return {token: name for token, name in special_names(tokenizer).items() if name != unknown}
