import{C as e,D as t,G as n,H as r,J as i,Q as a,R as o,S as s,T as c,U as l,V as u,W as d,a as f,at as p,b as m,c as h,ct as g,ft as _,g as v,h as y,i as ee,it as b,lt as x,m as S,n as te,o as C,ot as ne,pt as re,s as w,st as ie,t as ae,tt as T,ut as E,v as D,w as oe,x as se,z as ce}from"./index-BnmWKYYK.js";var le=Object.defineProperty,O=(e,t)=>{let n={};for(var r in e)le(n,r,{get:e[r],enumerable:!0});return t||le(n,Symbol.toStringTag,{value:`Module`}),n},ue=`# The tour

Run \`sightline serve\`, open the page and choose *Tour*: there, each stop computes its numbers with a real model, for
your own sentence. This page has the same text.

The Transformer of “Attention Is All You Need” (Vaswani et al., 2017), step by step, for a reader with school
mathematics. At each stop you predict something, the model answers, and you change something in it and watch what
happens. A vector is a list of numbers and a matrix is a table of numbers; no other word is needed in advance.

## Result

**What does a Transformer do with a sentence?**

A translator reads your sentence and writes another one. It does not look sentences up: it has never seen most of the
sentences that it translates. It writes one piece after another, and for each piece it computes a probability for every
piece that it knows.

*Predict.* Of which word of its translation was the model least sure?

*Look.* The translation is a chain of choices, and each choice has a probability. The product of all of them is the
probability of the whole sentence. A small number there is normal: many small doubts multiply. Press *Scores* to see the
probability of each word.

*Do.* Click a word of the translation and choose another one. The model keeps your word and writes the rest again.

*Then.* The words after your choice can change, because each choice depends on all words before it.

*Card.* **What does a Transformer compute at each step of writing?** A probability for every entry of its vocabulary,
given the input and all that it has written so far.

*Remember.* A translation is one choice after another, each with a probability.

## Inside the box

**What is inside?**

There are two stacks of layers. The encoder, on the left, reads your sentence. The decoder, on the right, writes the
translation. All layers of a stack have the same parts, but each layer has learned numbers of its own. Each small
picture is one attention head: it shows which word looks at which.

*Predict.* How many heads does this whole model have? Count, or calculate.

*Look.* A decoder layer has two attentions: one to the words written so far, and one to the encoder. An encoder layer
has one. How many layers and heads there are is a choice of the people who built the model. The paper chose six layers
in each stack, and eight heads in each attention.

*Do.* Drag the slider under the words to its beginning, or press “Step back”. Then step forward.

*Then.* The encoder reads all words together, layer by layer. The decoder reads one token per step and writes the next.

*Notes.* Many notes say that a decoder always handles one position at a time. Look at the training stop: while it
learns, it handles all positions at once, because the right words are known. Only writing is one by one.

*Card.* **What is the structure of a Transformer?** A stack of encoder layers that read the input, and a stack of
decoder layers that write the output and look at the encoder's result. Each layer has attention and a feed-forward
network, each with a residual connection and a norm.

*Card.* **What is the structure of an encoder layer?** Self-attention, add and norm, feed-forward network, add and norm.

*Remember.* The encoder reads the whole sentence in one pass; the decoder writes one token per pass.

## Tokens

**What does the model see instead of words?**

A computer calculates with numbers, so the sentence is cut into pieces, and each piece has a number. The pieces are
called tokens. Frequent words are one token; rare words are cut into several, so that a vocabulary of limited size
covers every text. The last token marks the end of the sentence.

*Predict.* Into how many tokens is your sentence cut, with the end?

*Look.* The number of a token, its id, is only its place in the vocabulary. Ids that are close together mean nothing in
common.

*Do.* Write a rare or invented word into the text above the model, for example *unquestionableness*, and see how it is
cut.

*Then.* Whatever you write, the model can read it: in the worst case letter by letter, or byte by byte.

*Card.* **How is a sentence represented for the network?** It is cut into tokens; each token is replaced by its id in
the vocabulary, and each id by a vector.

*Remember.* The model reads ids of sub-word tokens, not words.

## Embeddings

**How does an id become something to calculate with?**

The model has a table with one row for each entry of the vocabulary. The id says which row to take. This row, a vector,
is the token's embedding. At first the rows are random; training moves them.

*Predict.* How many numbers are in one row of this model?

*Look.* The paper's base model has 512 numbers in each row, and calls this width d_model. Rows are then multiplied by
√d_model, so that the positions, which are added next, do not drown them. To compare two rows, take the cosine of the
angle between them: 1 is the same direction, 0 is unrelated. Training moves the rows of tokens that are used alike
closer together.

*Do.* Click a number in the open box of the model. A panel shows where it comes from.

*Then.* A number of the first row comes from nowhere but training: it is a learned number in the table.

*Card.* **What is a word embedding?** A learned vector for each token. Tokens that are used in similar ways get similar
vectors.

*Remember.* An embedding is one learned row of a table, picked by the token's id.

## Positions

**How does the model know the order of the words?**

Attention, the heart of the model, treats its input as a set: it has no first and no last. So a pattern that depends on
the position is added to each embedding. The picture in the open box shows these patterns: waves, fast on the left and
slow on the right.

*Predict.* Positions are switched off, and the words are shuffled. What happens to the vectors that the encoder
computes?

- Every word gets a completely different vector
- Every word keeps its vector, only in its new place
- All words get the same vector

*Look.* Without positions, each word keeps its vector, wherever it is placed; the tiny difference is rounding. With
positions, the shuffled words get other vectors. Why sine *and* cosine? Because then a step of any fixed length turns
each pair of sine and cosine by a fixed angle, wherever one starts. So the product of two patterns (multiply number by
number, and add up) depends on their distance alone: compare the two products of neighbours.

*Otherwise.* In this model, the numbers do not show this. A model with learned or rotated positions has no waves, and a
text without spaces cannot be shuffled here. The bundled model with its sentence shows it.

*Do.* Switch *Positions* off above the model, then press *Shuffle the words* here.

*Then.* Whatever the order, the encoder now computes the same. “The dog bit the man” and “the man bit the dog” are one
sentence to it.

*Notes.* Many notes say that the order of the tokens is irrelevant. That holds only before positions are added. Look at
the difference with positions.

*Card.* **Why does a Transformer need positional encodings?** Attention ignores order. Without positions, a shuffled
sentence gives each token the same vector, so “Qian kill you” and “you kill Qian” cannot be told apart.

*Card.* **Why sine and cosine?** Moving by a fixed distance turns each pair by a fixed angle, so the product of two
patterns depends on their distance only.

*Remember.* Order enters the model only through the positions that are added to the embeddings.

## Which word

**What does “it” mean?**

In “The animal didn't cross the street because it was too tired”, *it* is the animal. Replace *tired* by *wide*, and
*it* is the street. In self-attention, each word looks at all words of its sentence and collects from them what it
needs.

*Predict.* Which other word gets the largest weight from the marked word, in any head of the encoder?

*Look.* Heads look at different words, and many look at something that is no answer to your question. A large weight
shows where a head reads, not what the model concludes. To find out what matters, change the input: the two sentences
differ in one word, and so does the translation of the pronoun.

*Otherwise.* The weights above are those of your sentence. It has no *tired* or *wide* to exchange, or this model writes
the same pronoun in both. The bundled model with its sentence shows the change.

*Do.* Change *tired* to *wide* (or *wide* to *tired*) in the text above the model.

*Then.* Now the other noun is meant, and the translation of the pronoun follows.

*Notes.* Many notes show one coloured line from “it” to “animal” as if it were the explanation. Look at all heads of all
layers: that line is one of many.

*Card.* **What does self-attention do?** It lets each token collect information from the other tokens of its sentence.

*Remember.* Attention shows where a head reads; only a change of the input shows what matters.

## Query, key and value

**What are q, k and v?**

From the vector of a word, each head computes three short vectors. The query says what this word is looking for, the key
what it offers to those who look, and the value what it hands over. Each is the word's vector times a matrix of learned
numbers: W^Q, W^K and W^V.

*Predict.* How many numbers are in the query of one word in one head?

*Look.* The heads share the width of the model: d_model divided by the number of heads. The paper has 512 / 8 = 64. One
number of q is a sum of d_model products: all numbers of the word's vector, each times a learned number.

*Do.* In the open attention, click a number of the vector q. All products that it is the sum of are listed.

*Then.* Each of the other numbers can be clicked, too: one click per step leads back to the embedding.

*Notes.* Are all weight matrices the same size? Those for q and k must be, since q and k are multiplied with each other.
Those for v are by custom. The matrices of the feed-forward network are not. And Q, K and V are not the weight matrices:
they are computed from the words by them.

*Card.* **Where do q, k and v come from?** Each is the vector of the word times a learned matrix, W^Q, W^K or W^V, one
of each per head.

*Remember.* Query, key and value are three views of one vector, made by three learned matrices.

## From scores to weights

**How much does a word take from every other word?**

Multiply the query of the word with the key of another, number by number, and add up: this is the score, a dot product.
Divide all scores by √d_k, the root of the length of a key. Then softmax: raise e to the power of each score and divide
by the sum of all. The results are positive and add up to 1. These are the weights, and the sum of all values, each
times its weight, is the result z.

*Predict.* Which share of its weight, in percent, does the marked word give to the word with the largest score, in the
marked head?

*Look.* A score is a sum of d_k products, so scores grow with √d_k; the division undoes that. Without it, the softmax
nearly picks a single word. Entropy measures how spread the weights are: 0 is a single word. It falls when the division
is left out.

*Do.* Switch *÷ √dₖ* off above the model and see the pictures of the heads change.

*Then.* The rows become sharper: fewer words share the weight. In training, a softmax that has picked one word hardly
moves any more, and learning stops.

*Notes.* Is the softmax over a sentence, a batch or the corpus? Over the keys of one sentence: the weights of each word
add up to 1, whatever else is computed at the same time. Are all z equal then? No: all words share the same values, but
each has weights of its own. Compare the two z.

*Card.* **Why divide by √d_k?** A dot product of d_k numbers has a spread of √d_k. Undivided, the softmax picks one
word, and hardly any gradient passes. With d_k = 64 one divides by 8.

*Card.* **What is the softmax in attention computed over?** Over the keys of one sequence, for each query and head
separately.

*Remember.* Weights are a softmax of scaled dot products; the output is the sum of values with these weights.

## Matrices

**Is all this done word by word?**

Put the queries of all words under each other, and they are a matrix Q, with one row per word. In the same way the keys
are K, and the values V. Then all scores are one product of matrices, and the whole attention is one formula: softmax(Q
Kᵀ / √d_k) V.

*Predict.* How many scores does one head compute for your sentence?

*Look.* Every word with every word: the square of the number of tokens. Twice the length means four times the scores.
All of them are independent, so a computer calculates them at the same time. A recurrent network (RNN, GRU, LSTM) must
wait for each word before it can read the next.

*Do.* Click any cell in the large picture of the weights: its row is the query, its column the key.

*Then.* The table below shows how this cell came about: score, division, mask, softmax.

*Notes.* Many notes call the rows of X “a batch of two words”. The rows are the words of one sentence. A batch is
several sentences, and they never see each other.

*Card.* **What is the formula of attention?** softmax(Q Kᵀ / √d_k) V.

*Remember.* Attention is two products of matrices with a softmax between them.

## Heads

**Why several heads?**

One softmax makes one choice of what to read. With several heads, a word can read from several places at once: one head
follows the verb, another the noun. The results of all heads are written next to each other (concatenated), and one more
learned matrix, W^O, mixes them.

*Predict.* Each head of the marked attention is removed in turn. Which one does the translation need most?

*Look.* The change is in log-probability, the logarithm of the probability, of the model's own translation: 0 means that
the head does not matter here, −0.69 halves the probability. In most models, a few heads matter much and many hardly at
all. Concatenated, the heads have the width of the model again, so eight narrow heads cost as much as a single wide one.

*Do.* Remove a head: in the open attention, choose *removed* for it.

*Then.* Old and new are next to each other. The other heads continue as before: they do not see each other before W^O.

*Notes.* Why 8? It is a choice. The paper tried 1 to 32 heads at equal cost: a single head was 0.9 BLEU (the usual score
of translations, from 0 to 100) worse than 8, and 32 were worse than 8 again.

*Card.* **What is multi-head attention?** Several attentions side by side, each with its own matrices; their outputs are
concatenated and multiplied by W^O.

*Remember.* Heads read different things at the same time, and W^O mixes what they found.

## Add and norm

**What happens to the old vector?**

What attention has found does not replace the vector of a word: it is added to it. This is the residual connection. Sums
would grow from layer to layer, so the vector is normalised: subtract the mean of its numbers, divide by their standard
deviation.

*Predict.* How long is the vector that attention adds, in percent of the vector that it is added to?

*Look.* The old vector stays in the sum. So there is a straight way through all layers, for the numbers upwards and, in
training, for the corrections (gradients) downwards. After the subtraction and the division, the mean is 0 and the
variance 1; then each number is stretched and shifted by two learned numbers.

*Do.* In the open box, click the mean or the variance, and see what it is computed from.

*Then.* All operands belong to this one word.

*Notes.* Many notes say that it is “normalised like batch norm”. Look: the mean and the variance are those of one word's
numbers, and each word has its own. No other word and no other sentence plays a part. This is layer norm. The paper
normalises the sum (post-norm); many models since normalise what a sub-layer reads (pre-norm).

*Card.* **What are residual connection and layer norm for?** The sub-layer's result is added to its input, which keeps a
straight way for numbers and gradients; the norm gives each word's vector mean 0 and variance 1 before a learned scale.

*Remember.* Each sub-layer adds to a word's vector, and layer norm keeps its size in bounds, word by word.

## Feed-forward

**What happens inside each word alone?**

After attention has collected, the feed-forward network works on each word by itself. A wide layer of units comes first:
each unit multiplies the vector with a learned pattern and adds up. In most models of this kind, a negative result
becomes 0 (ReLU), so a unit is silent or active. A second matrix brings the active ones back to the width of the model.

*Predict.* Which share of the units, in percent, is active for the marked word?

*Look.* Different words activate different units. Without this step a layer could only mix vectors; the bend at 0 lets
it decide: *this, but only if that*. The feed-forward networks hold more learned numbers than the attentions of the same
layer, if the inner width is more than twice the width of the model.

*Do.* Click a unit in the open box, and see the pattern that it looks for.

*Then.* The unit is one dot product and a bend.

*Notes.* Many notes say that different z run through different feed-forward networks. They run through the same one: one
layer has one set of weights, used at every position. Only the paths are separate.

*Card.* **Why a feed-forward network after attention?** Attention mixes words linearly by its weights; the network works
on each word with a non-linear step, the same at every position.

*Remember.* Attention moves information between words; the feed-forward network works on each word alone.

## Layer by layer

**How does a word's vector change on its way up?**

Each layer adds a little. At the top, the model turns the last vector into probabilities of words (a later stop shows
how). One can do the same with the vector after every layer: which word would it write, if this were all? This is the
logit lens. It is a way of looking, not a part of the model.

*Predict.* From where on is the model's next word the likeliest, and stays it?

*Look.* Right after the embedding, the lens sees only the word that was read. The answer forms on the way up. The cosine
shows how far the vector has turned from its embedding. In a good model with few layers, the answer may only appear at
the very top.

*Do.* Click another word of the output above the model. The numbers here follow: they show the way to the word after it.

*Then.* Some words are decided early, others only by the last layer.

*Card.* **What does a stack of layers do?** Each layer adds to the vector of every word; later layers build on what
earlier ones found.

*Remember.* A word's vector is a sum that all layers add to.

## Start and mask

**What may the decoder see?**

To write the first word, the decoder needs something to read: the start token, here \`<s>\`. In training it gets the whole
translation at once, shifted by one, and must guess each next word. It would be easy to cheat and look at the next word.
So a mask is added to the scores, after the division and before the softmax: 0 where looking is allowed, −∞ for all
later words. As e to the power of −∞ is 0, their weights are exactly 0.

*Predict.* This model was trained with the mask. Now the mask is switched off, and it sees the words that follow. What
happens to the probability of its translation?

- It rises: the model sees the answer and cheats
- It stays the same
- It falls: the model gets worse

*Look.* Nats per token is the mean of −log(probability) of the right words, with the natural logarithm: smaller is
better. The model has never seen the future, so it has never learned to use it; what it sees there only disturbs it.
Cheating must be learned: only a model that is *trained* without the mask copies the next word, and then it cannot
write, because nothing follows yet.

*Otherwise.* For this sentence the number does not rise. The mask matters little here; over many sentences, a model
trained with it gets worse. The bundled model with its sentence shows it.

*Do.* Switch *Look-ahead mask* off above the model and look at the masked self-attention: the upper right half fills.

*Then.* Weights above the diagonal are looks into the future.

*Card.* **Why is there a look-ahead mask?** In training, all positions are computed at once. The mask (0 or −∞, added
after scaling and before softmax) keeps a position from seeing the word that it has to predict.

*Remember.* The mask makes the future invisible, so that guessing in training is the same as writing.

## Cross-attention

**How do the two stacks speak with each other?**

In the middle of each decoder layer is an attention to the encoder. The words written so far look at the words of your
sentence.

*Predict.* Where do its queries, keys and values come from?

- Queries and keys from the encoder, values from the decoder
- Queries from the decoder, keys and values from the encoder
- All three from the encoder

*Look.* The shapes prove it: there are as many queries as words of the translation, and as many keys and values as words
of your sentence.

*Otherwise.* Your sentence and its translation have the same number of tokens here, so the shapes alone cannot tell. But
compare the number of k with the product below it: it is made of the encoder's output.

*Do.* In the open cross-attention, click a number of the vector k. What is it made of?

*Then.* Its operands are the encoder's final output and this layer's own matrix W^K.

*Notes.* Many notes say that the keys and queries come from the encoder and the values from the decoder. Look at the
shapes. Others say that keys and values *are* the encoder's output. Look: they are this output times this layer's W^K
and W^V, so two layers have different keys. And why does every decoder layer get the same encoder output? Because each
has a question of its own to the sentence, and its own matrices to ask it.

*Card.* **Where do q, k and v of cross-attention come from?** Queries from the decoder's layer below; keys and values
from the encoder's final output, by this decoder layer's own W^K and W^V.

*Remember.* The decoder asks, the encoder's output answers.

## Next word

**How does a vector become a word?**

The last vector of the decoder is multiplied with one learned row per entry of the vocabulary. The results are the
logits, one score per entry. Softmax makes probabilities of them. One can take the likeliest, or draw. Dividing the
logits by a temperature before the softmax makes drawing bolder (above 1) or more careful (below 1). Top-k draws among
the k likeliest only, top-p among the likeliest that together have the probability p.

*Predict.* With temperature 2, how likely is the likeliest entry at the marked choice, in percent?

*Look.* The temperature never changes the order, only the differences. With top-k = 1 drawing is the same as choosing
the likeliest.

*Do.* In Translate, choose sampling and change the temperature.

*Then.* Another seed draws another translation; at a high temperature it soon falls apart.

*Notes.* Many notes say that the largest *index* is the chosen word. It is the index of the largest probability.

*Card.* **What are linear layer and softmax at the end for?** The linear layer gives a score (logit) for every entry of
the vocabulary; softmax turns the scores into probabilities.

*Remember.* Logits are scores; softmax makes probabilities; a rule chooses the word.

## The loop

**How is a whole sentence written?**

The chosen word goes back in at the bottom of the decoder, with its position, and the next one is computed, until the
end token is chosen. Do all earlier words have to be computed again each time? No: a position never sees later ones, so
its keys and values never change. They are kept in a cache.

*Predict.* How many times does the decoder run to write this translation, with the end?

*Look.* The encoder runs once. Without the cache, step n would compute n positions again: 1 + 2 + … + n. With it, each
step computes one.

*Do.* Step to the middle of the decoder's steps with the slider under the words, and read the note next to it.

*Then.* “Keys and values of earlier tokens are reused”: this is the cache.

*Card.* **Why does the encoder run once and the decoder many times?** The input is known at once; each output token
depends on the tokens before it. Earlier keys and values are kept, not computed again.

*Remember.* Writing is a loop: choose, append, compute one more position.

## Beams

**Is the likeliest next word always the best?**

Greedy search takes the likeliest word each time and cannot go back. Beam search keeps several beginnings at once,
extends all of them, and keeps the best. At the end, the scores are compared per length, or short answers would always
win.

*Predict.* Compared with greedy search, what do four beams give for your sentence?

- The same translation
- Another translation with a better score
- Another translation with a worse score

*Look.* Often the result is the same: the first choice was right. If it differs, beam search found a beginning that
looked worse at first and was better in the end. It is no guarantee of the best sentence.

*Do.* In the tree, choose a hypothesis that was not the best, and press *Continue from here*.

*Then.* The search continues from your beginning, and the two scores are compared.

*Notes.* Many notes describe beam search as a part of training. It is one way to write when training is done; training
has the right words and needs no search.

*Card.* **What does beam search keep?** At each step the most likely beginnings (hypotheses), as many as there are
beams; at the end the one with the best score per length.

*Remember.* Beam search keeps several beginnings, greedy search one.

## Training

**Where do all the learned numbers come from?**

At first every number is random, and the translation is noise. Training shows the model pairs of sentences. For each
position it predicts the next word, and the loss is −log of the probability that it gave to the right one. Then every
number is moved a little in the direction that makes the loss smaller (back-propagation finds this direction). That is
repeated some hundred times here, and some hundred thousand times for a large model.

*Predict.* After how many of these small steps does a model of a small world translate the riddle of “it” correctly?

- After about 40
- After about 160
- After about 10,000

*Look.* First it learns which words are frequent, then which words belong together, then their order, and at last what
“it” means, because the loss of a single word depends on it. The decoder always reads the *right* words before the
position, not its own guesses: this is teacher forcing, and it is why all positions can be trained at once. Label
smoothing asks for a little less than certainty: instead of 1 for the right word, for example 0.9, and the rest shared
by all others.

*Otherwise.* This run went another way: compare the translations at its steps.

*Do.* Move the slider over the steps, and watch the translation and the picture of the head change.

*Then.* The same sentence, the same head, only other numbers.

*Notes.* Many notes say that in training the best words are kept and fed into the decoder as beams. No: training has the
right words. It needs no search.

*Card.* **What is teacher forcing?** In training, the decoder reads the right words so far instead of its own, so that
all positions are computed at once.

*Card.* **What does training minimise?** The cross-entropy: the mean of −log(probability of the right next token), with
label smoothing.

*Remember.* Training moves all numbers, step by step, so that the right next word becomes likelier.

## Continuing a text

**What is left without the encoder?**

A language model such as GPT is the decoder stack alone, without cross-attention. There is no other sentence: it reads
the text so far and predicts how it continues. The mask is the same as in a translator's decoder.

*Predict.* How sure is the model of its likeliest next token, in percent?

*Look.* Self-attention with the look-ahead mask, feed-forward, add and norm: the same blocks as before. To write, the
chosen token is appended, and the model runs again. It can look at every earlier token directly, however long ago; a
recurrent network has only its one state, into which all earlier words must fit.

*Do.* Continue the text with a word of your own, and see the prediction change.

*Then.* Each new word changes what is likely next. No earlier weight changes, because of the mask.

*Card.* **How does GPT differ from the paper's Transformer?** It is the decoder alone, without cross-attention: a
language model with the look-ahead mask.

*Remember.* GPT is a masked stack that continues its own text.

## Reading a text

**What is left without the decoder?**

A reader such as BERT is the encoder stack alone. There is no mask: each word looks at all others, to the left and to
the right. It is trained to guess words that were hidden. Its first token, the class token, belongs to no word; its
vector stands for the whole text.

*Predict.* Positions are switched off, and the words are reversed, as in “Qian kill you” and “you kill Qian”. What
happens to the vector of the class token?

- It stays the same
- It changes a little
- It changes completely

*Look.* Without positions, both sentences are the same set of words, so the class token collects the same. With
positions it does not. And as there is no mask, weights of later words are not 0.

*Otherwise.* In this model the two vectors differ, or the text cannot be reversed word by word. Models that are not
trained, and texts of a single word, show nothing here.

*Do.* Switch *Positions* off above the model, then press *Reverse the words* here.

*Then.* The class token cannot tell who kills whom.

*Card.* **What is the class token?** A token in front of the text of a BERT. Its vector at the top stands for the whole
text, and a classifier reads it.

*Card.* **How does BERT differ from GPT?** BERT is the encoder: it sees both sides and guesses hidden words. GPT is the
decoder: it sees the left side and guesses the next word.

*Remember.* BERT is a stack without a mask that sees both sides.

## Quiz

**What has stayed?**

Seven questions about your own sentence. The model has the answers.

*Predict.* How many of the seven will you answer correctly?

*Look.* Each question that went wrong belongs to a stop: go back to it. The cards of all stops can be learned with Anki,
a program for learning by repetition: import the file as *Text separated by tabs*.

*Do.* Answer all questions.

*Then.* That is the whole Transformer.

*Remember.* You can look inside: open any number in the glass, and see what it is made of.
`,de={Predict:`predict`,Look:`look`,Otherwise:`otherwise`,Do:`do`,Then:`then`,Remember:`remember`},fe=/^\*(\w+)\.\* ([^]*)$/,pe=/^\*\*(.+?)\*\* ([^]*)$/,me=e=>e.toLowerCase().replace(/[^\w\- ]/g,``).replaceAll(` `,`-`),k=e=>e.replace(/\s*\n\s*/g,` `);function he(e){let[t,n,...r]=e.trim().split(/\n{2,}/),i={id:me(t),title:t,question:n.slice(2,-2),intro:[],predict:``,options:[],look:``,otherwise:``,do:``,then:``,notes:[],cards:[],remember:``};for(let e of r){let t=fe.exec(e);if(!t&&e.startsWith(`- `))i.options=e.split(/\n?^- /m).slice(1).map(k);else if(!t)i.intro.push(k(e));else if(t[1]===`Notes`)i.notes.push(k(t[2]));else if(t[1]===`Card`){let[,e,n]=pe.exec(k(t[2]));i.cards.push({question:e,answer:n})}else i[de[t[1]]]=k(t[2])}return i}var[ge,..._e]=ue.split(/^## /m),ve=k(ge.trim().split(/\n{2,}/)[2]),ye=_e.map(he);function A(e,t){let n=0;for(let r=0;r<e.length;r++)n+=e[r]*t[r];return n}var j=e=>Math.sqrt(A(e,e)),be=(e,t)=>A(e,t)/(j(e)*j(t)),M=e=>Array.from(e).reduce((e,t)=>e+t,0);function N(e){let t=0;for(let n=1;n<e.length;n++)e[n]>e[t]&&(t=n);return t}function xe(e){let t=e[N(e)],n=Array.from(e,e=>Math.exp(e-t)),r=M(n);return n.map(e=>e/r)}var Se=e=>-M(Array.from(e,e=>e>0?e*Math.log(e):0)),Ce=class{app;trace;entry;constructor(e,t,n){this.app=e,this.trace=t,this.entry=n}get view(){return this.app.view}get focus(){let e=t(this.view.word),n=L(this.trace);return e?.side===n&&e.at<this.trace.words(n).length?e.at:Te(this.trace)}word(e){return D(this.trace.words(L(this.trace))[e]??``)}get marked(){return this.word(this.focus)}target(e){return D(this.trace.words(`target`)[e]??``)}async traced(e,t=this.view.text.trim()){let{connection:n}=this.app,{model:r,target:i}=P(this.trace),a=n.send(`/v1/trace`,{model:r,text:t,...i===null?{}:{target:i},what_if:e}),o=await n.read(a,e=>e.json());return new f(o,ee(n,o))}async scores(e){let{connection:t}=this.app,{model:n,target:r}=P(this.trace),i=[{source:this.view.text.trim(),target:r}],a=e.map(async e=>{let r=t.send(`/v1/score`,{model:n,pairs:i,what_if:e});return(await t.read(r,e=>e.json())).scores[0].log_prob});return Promise.all(a)}async tensors(...e){return this.trace.tensors(e)}},P=e=>e.manifest,F=(e,t)=>`${e.stacks[0].name}.${t}`,I=(e,t)=>`${e.top.name}.${t}`,L=e=>e.stacks[0].side,R=e=>/^(<(?!0x)[^>]*>|\[[A-Z]+\])$/.test(e),z=e=>/\p{L}/u.test(e)&&!/^<.*>$/.test(e)&&!R(e),B=e=>(e.manifest.log_probs??[]).map(e=>e??-1/0);function V(e){let t=e.map(D);return e.flatMap((e,n)=>z(e)?[{at:n,label:t.filter(e=>e===t[n]).length>1?`${t[n]} (token ${n+1})`:t[n]}]:[])}function we(e){let t=e.some(e=>/^[▁Ġ]/.test(e));return n=>!t||/^[▁Ġ]/.test(e[n])}function Te(e){let t=e.words(L(e)).map(D),n=t.findIndex(e=>e.toLowerCase()===`it`);if(n>=0)return n;let r=t.flatMap((e,t)=>z(e)?[t]:[]);return r[Math.floor(r.length/2)]??0}var H=e=>({word:`${L(e)[0]}${Te(e)}`}),U=e=>({view:t})=>e.test(t.why.split(`@`)[0]),Ee=O({addAndNorm:()=>Le,feedForward:()=>Re,matrices:()=>Ie,queries:()=>Pe,scores:()=>Fe,swapped:()=>Ae,which:()=>je}),De=e=>S(e).filter(({stack:t})=>t===e.stacks[0]);function Oe(e){let t=e.trace.words(`source`),n=we(t);return V(t).filter(({at:t})=>t!==e.focus&&n(t))}var ke={tired:`wide`,wide:`tired`};function Ae(e){let t=e.replace(/\b(tired|wide)\b/,e=>ke[e]);return t===e?null:t}var je={id:`which-word`,task:`translate`,room:`glass`,show:e=>({open:F(e,`layers.${e.stacks[0].layers-1}.self_attention`),...H(e)}),mark:e=>`The marked word is “${e.marked}”.`,prediction:{kind:`choose`,options:e=>Oe(e).map(({label:e})=>e)},async reveal(e){let{app:t,trace:n,focus:r}=e,i=De(n),a=await e.tensors(...i.map(({path:e})=>`${e}.probabilities`)),o=Oe(e).map(e=>{let t={weight:-1,layer:0,head:0};return a.forEach((n,i)=>{for(let a=0;a<n.shape[0];a++){let o=C(n,a,r,e.at);o>t.weight&&(t={weight:o,layer:i,head:a})}}),{...e,...t}});o.sort((e,t)=>t.weight-e.weight);let s=o.slice(0,4).map(({at:e,label:t,weight:n,layer:a,head:o})=>({key:`weight-${e}`,label:`Largest weight for “${t}”: layer ${a+1}, head ${o+1}`,value:n,share:!0,node:{name:`${i[a].path}.probabilities`,at:[o,r,e]}})),l=Ae(t.view.text),u=P(n).target??``,d=h(c(t.view)),f=l?(await t.api.translate(n.manifest.model,l,d)).text:u,[p,m]=[v(u),v(f)],g=(e,t)=>t.filter((n,r)=>y(e,t)[r]).join(` `);l&&(s.push({key:`here`,label:`Words of this translation that change`,value:g(m,p)}),s.push({key:`there`,label:`Translated with “${/\bwide\b/.test(l)?`wide`:`tired`}”`,value:g(p,m)}));let _=y(p,m).filter(Boolean).length>1;return{facts:s,answer:o[0]?.label??``,holds:_}},depends:e=>String(e.focus),done:({view:e,trace:t,entry:n})=>e.text!==n.text&&P(t).target!==n.target},W=e=>F(e,`layers.0.self_attention`),G=({view:e,trace:t},n=W(t))=>{let r=Number(e.heads.split(`-`)[0]||0);return r<t.shape(`${n}.probabilities`)[0]?r:0},K=e=>({open:W(e),...H(e)}),Me=e=>`The marked word is “${e.marked}”, the marked head is head ${G(e)+1} of the first encoder layer.`,Ne=e=>`${e.focus} ${G(e)}`,Pe={id:`query-key-and-value`,task:`translate`,room:`glass`,show:K,mark:Me,prediction:{kind:`type`},async reveal(e){let{trace:t,focus:n}=e,r=G(e),[i,a,o]=await e.tensors(`${W(t)}.q`,`${W(t)}.k`,`${W(t)}.v`),[s,,c]=i.shape,l=(i,a)=>({key:i,label:`First number of ${i} of “${e.marked}”`,value:C(a,r,n,0),node:{name:`${W(t)}.${i}`,at:[r,n,0]}});return{facts:[{key:`width`,label:`Numbers in the vector of a word (d_model)`,value:t.config.d_model},{key:`heads`,label:`Heads`,value:s},{key:`d_k`,label:`Numbers in a query, a key and a value (d_k)`,value:c},{key:`matrix`,label:`Size of each matrix W^Q, W^K and W^V of one head`,value:`${t.config.d_model} × ${c}`},l(`q`,i),l(`k`,a),l(`v`,o)],answer:c,holds:!0}},depends:Ne,done:U(/\.q(_unrotated)?$/)},Fe={id:`from-scores-to-weights`,task:`translate`,room:`glass`,show:K,mark:Me,prediction:{kind:`drag`,most:100},async reveal(e){let{focus:t,trace:n}=e,r=G(e),[i,a,o,s]=await e.tensors(...[`scores`,`scaled`,`probabilities`,`z`].map(e=>`${W(n)}.${e}`)),c=N(w(i,r,t)),l=e=>({name:`${W(n)}.${e}`,at:[r,t,c]}),u=C(o,r,t,c),[d,f]=o.shape,p=e=>{let t=0;for(let n=0;n<d;n++)for(let r=0;r<f;r++)t+=e(n,r);return t/(d*f)},m=p((e,t)=>Se(w(o,e,t))),h=p((e,t)=>Se(xe(w(i,e,t)))),[g,_]=[w(s,r,t),w(s,r,c===t?Math.max(t-1,0):c)];return{facts:[{key:`score`,label:`Largest score: “${e.marked}” for “${e.word(c)}”`,value:C(i,r,t,c),node:l(`scores`)},{key:`scaled`,label:`Divided by √d_k`,value:C(a,r,t,c),node:l(`scaled`)},{key:`share`,label:`After the softmax`,value:u,share:!0,node:l(`probabilities`)},{key:`sum`,label:`Sum of all weights of “${e.marked}”`,value:M(w(o,r,t))},{key:`z`,label:`First number of z of “${e.marked}”`,value:g[0],node:{name:`${W(n)}.z`,at:[r,t,0]}},{key:`other-z`,label:`First number of z of “${e.word(c===t?Math.max(t-1,0):c)}”`,value:_[0]},{key:`entropy`,label:`Mean entropy of all weights of this layer`,value:m},{key:`unscaled`,label:`The same without the division`,value:h}],answer:u*100,holds:h<m}},depends:Ne,done:({view:e})=>/(^|,)scale(@|,|$)/.test(e.changes)},Ie={id:`matrices`,task:`translate`,room:`glass`,show:K,prediction:{kind:`type`},async reveal(e){let{trace:t}=e,[n,r,i]=t.shape(`${W(t)}.probabilities`),[,,a]=t.shape(`${W(t)}.q`),o=M(S(t).map(({path:e})=>t.shape(`${e}.probabilities`).reduce((e,t)=>e*t)));return{facts:[{key:`q`,label:`Q, the queries of one head`,value:`${r} × ${a}`},{key:`k`,label:`K, its keys`,value:`${i} × ${a}`},{key:`scores`,label:`Scores of one head`,value:r*i},{key:`layer`,label:`Scores of the ${n} heads of this attention`,value:n*r*i},{key:`all`,label:`Scores of the whole model for this translation`,value:o}],answer:r*i,holds:!0}},done:({view:e})=>e.key>=0},q=e=>`${W(e)}_residual`,Le={id:`add-and-norm`,task:`translate`,room:`glass`,show:e=>({open:q(e),...H(e)}),mark:e=>`The marked word is “${e.marked}”, in the first encoder layer.`,prediction:{kind:`drag`,most:300},async reveal(e){let{focus:t,trace:n}=e,[r,i,a,o,s]=await e.tensors(...[`input`,`sublayer`,`norm.input`,`norm.mean`,`norm.variance`].map(e=>`${q(n)}.${e}`)),c=t>0?t-1:Math.min(1,r.shape[0]-1),l=j(w(i,t))/j(w(r,t)),u=Array.from(w(a,t),e=>(e-o.data[t])/Math.sqrt(s.data[t]+n.config.norm_epsilon)),d=M(u)/u.length,f=(e,t)=>({name:`${q(n)}.norm.${e}`,at:[t]});return{facts:[{key:`old`,label:`Length of the vector of “${e.marked}”`,value:j(w(r,t))},{key:`added`,label:`Length of what attention adds`,value:j(w(i,t))},{key:`ratio`,label:`In percent`,value:l,share:!0},{key:`mean`,label:`Mean of what the norm reads for “${e.marked}”`,value:o.data[t],node:f(`mean`,t)},{key:`variance`,label:`Its variance`,value:s.data[t],node:f(`variance`,t)},{key:`other-mean`,label:`Mean for “${e.word(c)}”`,value:o.data[c],node:f(`mean`,c)},{key:`other-variance`,label:`Its variance`,value:s.data[c],node:f(`variance`,c)},{key:`after`,label:`Variance for “${e.marked}” after the division`,value:A(u,u)/u.length-d*d}],answer:l*100,holds:!0}},depends:e=>String(e.focus),done:U(/norm\.(mean|variance)$/)},J=e=>F(e,`layers.0.feed_forward`),Re={id:`feed-forward`,task:`translate`,room:`glass`,show:e=>({open:J(e),...H(e)}),mark:e=>`The marked word is “${e.marked}”, in the first encoder layer.`,prediction:{kind:`drag`,most:100},async reveal(e){let{focus:t,trace:n}=e,[r]=await e.tensors(`${J(n)}.units`),i=Array.from(w(r,t)),a=t>0?t-1:Math.min(1,r.shape[0]-1),o=w(r,a),s=i.filter(e=>e>0).length,c=i.filter((e,t)=>e>0&&o[t]>0).length,l=N(i),{d_model:u}=n.config;return{facts:[{key:`units`,label:`Units`,value:i.length},{key:`active`,label:`Active for “${e.marked}”`,value:s},{key:`share`,label:`Their share`,value:s/i.length,share:!0},{key:`both`,label:`Of these, also active for “${e.word(a)}”`,value:c},{key:`strongest`,label:`Strongest unit for “${e.marked}”: unit ${l}`,value:i[l],node:{name:`${J(n)}.units`,at:[t,l]}},{key:`matrices`,label:`Numbers in the two matrices of this network`,value:2*u*i.length*(n.config.activation===`swiglu`?1.5:1)},{key:`attention`,label:`Numbers in the four matrices of this layer's attention`,value:4*u*u}],answer:s/i.length*100,holds:!0}},depends:e=>String(e.focus),done:U(/feed_forward\.(units|inner)$/)},ze=O({beams:()=>Xe,cross:()=>qe,heads:()=>He,layers:()=>We,leastSure:()=>Y,loop:()=>Ye,mask:()=>Ke,next:()=>Je,positions:()=>tt,reordered:()=>Qe,reversed:()=>Q,shuffled:()=>$e,withoutPositions:()=>et}),Be={at:0,label:``};function Y(e){let t=V(e.words(`target`).slice(1)),n=B(e);return t[N(t.map(e=>-(n[e.at]??0)))]??Be}var Ve=e=>I(e,`layers.${e.top.layers-1}.cross_attention`);function X({view:e,trace:t}){return t.has(`${e.open}.probabilities`)?e.open:Ve(t)}var He={id:`heads`,task:`translate`,room:`glass`,show:e=>({open:Ve(e)}),mark:e=>`The marked attention is the ${X(e).includes(`cross`)?`cross-attention`:`self-attention`} of ${X(e).split(`.`)[0]} layer ${Number(X(e).split(`.`)[2])+1}.`,prediction:{kind:`choose`,options:e=>Array.from({length:e.trace.shape(`${X(e)}.probabilities`)[0]},(e,t)=>`Head ${t+1}`)},async reveal(e){let t=X(e),[n,,r]=e.trace.shape(`${t}.q`),i=await e.scores([null,...Array.from({length:n},(e,n)=>({remove_heads:{[t]:[n]}}))]),a=i.slice(1).map(e=>e-i[0]),o=N(a.map(e=>-e));return{facts:[{key:`whole`,label:`Log-probability of the translation with all heads`,value:i[0]},...a.map((e,t)=>({key:`drop-${t}`,label:`Change without head ${t+1}`,value:e})),{key:`concat`,label:`Width of all heads, concatenated`,value:n*r}],answer:`Head ${o+1}`,holds:!0}},depends:X,done:({view:e})=>e.changes.includes(`remove@`)},Z=e=>e?`After layer ${e}`:`After the embedding`;function Ue({view:e,trace:t}){let n=/^t(\d+)$/.exec(e.word);return n?Math.min(Number(n[1]),t.words(`target`).length-1):Y(t).at}var We={id:`layer-by-layer`,task:`translate`,room:`glass`,show:e=>({open:`output`,word:`t${Y(e).at}`}),mark:e=>`The decoder has read “${e.target(Ue(e))}” and writes the next word.`,prediction:{kind:`choose`,options:({trace:e})=>Array.from({length:e.top.layers+1},(e,t)=>Z(t))},async reveal(e){let{app:t,trace:n}=e,r=Ue(e),i=`/v1/trace/${encodeURIComponent(P(n).id)}/lens?position=${r}&count=1`,a=(await t.connection.read(t.connection.send(i),e=>e.json())).layers.map(([e])=>e),o=a[a.length-1].id,s=a.findIndex((e,t)=>a.slice(t).every(e=>e.id===o)),c=a.slice(1).map((e,t)=>I(n,`layers.${t}.feed_forward_residual.output`)),[l,...u]=(await e.tensors(I(n,`embedding.output`),...c)).map(e=>w(e,r));return{facts:a.flatMap((e,t)=>[{key:`lens-${t}`,label:`${Z(t)}: “${e.token.replace(/^[▁Ġ]/,``)}”`,value:e.probability,share:!0},...t?[{key:`cosine-${t}`,label:`Cosine with its embedding`,value:be(l,u[t-1])}]:[]]),answer:Z(s),holds:!0}},depends:e=>String(Ue(e)),done:({view:e,entry:t})=>/^t\d/.test(e.word)&&e.word!==t.word},Ge=e=>I(e,`layers.0.self_attention`),Ke={id:`start-and-mask`,task:`translate`,room:`glass`,show:e=>({open:Ge(e)}),prediction:{kind:`choose`},async reveal(e){let{trace:t}=e,[n,r]=await Promise.all([e.traced(null),e.traced({without:[`look-ahead-mask`]})]),i=e=>-M(B(e))/B(e).length,[a]=await n.tensors([`${Ge(t)}.probabilities`]),o=t.words(`target`).length,s=0;for(let e=0;e<a.shape[0];e++)for(let t=0;t<o;t++)for(let n=t+1;n<o;n++)s=Math.max(s,C(a,e,t,n));let[c,l]=[i(n),i(r)];return{facts:[{key:`start`,label:`The first token that the decoder reads`,value:e.target(0)},{key:`cells`,label:`Masked scores of each head (−∞)`,value:o*(o-1)/2},{key:`future`,label:`Largest weight of a later word, with the mask`,value:s},{key:`with`,label:`Nats per token with the mask`,value:c},{key:`without`,label:`Nats per token without the mask`,value:l}],answer:l<c-1e-6?0:l>c+1e-6?2:1,holds:l>c+1e-6}},done:({view:e})=>/(^|,)look-ahead-mask/.test(e.changes)},qe={id:`cross-attention`,task:`translate`,room:`glass`,show:e=>({open:I(e,`layers.0.cross_attention`)}),prediction:{kind:`choose`},async reveal(e){let{trace:t}=e,n=I(t,`layers.0.cross_attention`),[r,i]=[`source`,`target`].map(e=>t.words(e).length),a=e=>t.shape(`${n}.${e}`)[1],o=I(t,`layers.1.cross_attention.k`),[s,c]=await e.tensors(`${n}.k`,t.has(o)?o:`${n}.k`),l=await te(t,{name:`${n}.k`,at:[0,0,0]}),u=l.kind===`dot`?M([...l.rows.map(e=>e[2].value),...l.also.map(e=>e.value)]):NaN,d=e.word(0);return{facts:[{key:`source`,label:`Tokens of your sentence`,value:r},{key:`target`,label:`Tokens of the translation, with the start`,value:i},{key:`q`,label:`Rows of Q`,value:a(`q`)},{key:`k`,label:`Rows of K`,value:a(`k`)},{key:`v`,label:`Rows of V`,value:a(`v`)},{key:`first`,label:`First number of k of “${d}” in decoder layer 1`,value:C(s,0,0,0),node:{name:`${n}.k`,at:[0,0,0]}},...Number.isNaN(u)?[]:[{key:`product`,label:`The encoder's output for “${d}” times W^K of this layer`,value:u}],...t.has(o)?[{key:`second`,label:`The same number of k in decoder layer 2`,value:C(c,0,0,0),node:{name:o,at:[0,0,0]}}]:[]],answer:1,holds:r!==i&&a(`q`)===i&&a(`k`)===r}},done:U(/cross_attention\.k$/)},Je={id:`next-word`,task:`translate`,room:`translate`,mark:({trace:e})=>`The marked choice is “${Y(e).label}”, the one that the model was least sure of.`,prediction:{kind:`drag`,most:100},async reveal({trace:e}){let t=await e.row(`logits`,Y(e).at),[n,r,i]=[1,2,.5].map(e=>xe(t.map(t=>t/e))),a=N(t),[o]=await e.pieces([a]),s=n.toSorted((e,t)=>t-e),[c,l]=[0,0];for(;l<.9&&c<s.length;)l+=s[c++];return{facts:[{key:`entries`,label:`Entries of the vocabulary`,value:t.length},{key:`likeliest`,label:`The likeliest`,value:o.replace(/^[▁Ġ]/,``)},{key:`logit`,label:`Its logit`,value:t[a]},{key:`normal`,label:`Its probability`,value:n[a],share:!0},{key:`bold`,label:`With temperature 2`,value:r[a],share:!0},{key:`careful`,label:`With temperature 0.5`,value:i[a],share:!0},{key:`top-p`,label:`Entries that top-p = 0.9 draws from`,value:c}],answer:r[a]*100,holds:!0}},done:({view:e})=>e.sample&&e.temperature!==1},Ye={id:`the-loop`,task:`translate`,room:`glass`,prediction:{kind:`type`},async reveal({trace:e}){let t=e.words(`target`).length;return{facts:[{key:`reading`,label:`Passes of the encoder`,value:1},{key:`writing`,label:`Passes of the decoder`,value:t},{key:`cached`,label:`Positions that they compute with the cache`,value:t},{key:`uncached`,label:`Positions without the cache`,value:t*(t+1)/2}],answer:t,holds:!0}},done:({view:e,trace:t})=>{let n=e.step-t.stacks[0].layers-1;return n>1&&n<t.words(`target`).length}},Xe={id:`beams`,task:`translate`,room:`beams`,show:()=>({beams:4}),prediction:{kind:`choose`},async reveal({app:e,trace:t}){let{view:n,api:r}=e,{length_penalty:i}=h({...c(n),sample:!1,beams:4}),a=e=>({...h({...c(n),sample:!1,beams:1}),beams:e,length_penalty:i}),[o,s]=await Promise.all([1,4].map(e=>r.translate(t.manifest.model,n.text.trim(),a(e)))),[l,u]=[o.score??0,s.score??0];return{facts:[{key:`greedy`,label:`Greedy search`,value:o.text},{key:`greedy-score`,label:`Its score`,value:l},{key:`wide`,label:`Four beams`,value:s.text},{key:`wide-score`,label:`Its score`,value:u}],answer:s.text===o.text?0:u>l?1:2,holds:!0}},done:({view:e})=>e.prefix!==``},Q=e=>e.trim().split(/\s+/).reverse().join(` `);function Ze(e){let t=e.findIndex(e=>!R(e)),n=e.findLastIndex(e=>!R(e)),r=[];for(let i=t;i<=n;i++)(i===t||/^[▁Ġ]/.test(e[i]))&&r.push([]),r[r.length-1].push(i);let i=[...e.keys()];return[...i.slice(0,t),...r.reverse().flat(),...i.slice(n+1)]}async function Qe(e){let t=Q(e.view.text),n={without:[`positions`]},r=await Promise.all([e.traced(null),e.traced(null,t),e.traced(n),e.traced(n,t)]),i=await Promise.all(r.map(e=>e.tensor(F(e,`output`)))),[a,o]=r.map(e=>e.manifest.ids.source),s=Ze(r[0].words(`source`));if(t===e.view.text.trim()||a.length!==o.length||s.some((e,t)=>a[e]!==o[t]))return null;let c=(e,t)=>s.map((n,r)=>{let[a,o]=[w(i[e],n),w(i[t],r)],s=a.map((e,t)=>e-o[t]);return Math.sqrt(A(s,s)/A(a,a))});return{with:c(0,1),without:c(2,3)}}function $e(e,t){let n=e=>e.trim().split(/\s+/).toSorted().join(` `);return e.trim()!==t.trim()&&n(e)===n(t)}var et=e=>/(^|,)positions(,|$)/.test(e.changes),tt={id:`positions`,task:`translate`,room:`glass`,show:e=>({open:F(e,`embedding`)}),prediction:{kind:`choose`},async reveal(e){let t=await e.traced(null),n=F(t,`embedding.positions`),r=await Qe(e),i=[];r&&(i.push({key:`without`,label:`Largest change of a word's vector in the reversed sentence, without positions`,value:Math.max(...r.without)}),i.push({key:`with`,label:`The same with positions (1 is as long as the vector)`,value:Math.max(...r.with)}));let a=t.has(n);if(a){let e=await t.tensor(n),r=Math.max(Math.floor(e.shape[0]/2),1),[o,s]=[0,r-1].map(t=>A(w(e,t),w(e,t+1)));i.push({key:`start`,label:`Product of the patterns of positions 1 and 2`,value:o}),i.push({key:`middle`,label:`Of positions ${r} and ${r+1}`,value:s}),a=Math.abs(o-s)<=1e-4*Math.abs(o)}return{facts:i,answer:1,holds:r!==null&&a&&Math.max(...r.without)<1e-4&&Math.max(...r.with)>.01}},done:({view:e,entry:t})=>et(e)&&$e(e.text,t.text),action:{label:`Shuffle the words`,change:({view:e})=>({text:Q(e.text),target:``})}},nt=O({embeddings:()=>ct,headsOf:()=>at,inside:()=>ot,result:()=>it,tokens:()=>st}),rt=e=>V(e.words(`target`).slice(1)),it={id:`result`,task:`translate`,room:`translate`,prediction:{kind:`choose`,options:({trace:e})=>rt(e).map(({label:e})=>e)},async reveal({trace:e}){let t=B(e),n=Y(e);return{facts:[{key:`translation`,label:`Translation`,value:P(e).target},{key:`first`,label:`Probability of its first token`,value:Math.exp(t[0]),share:!0},{key:`least`,label:`Probability of “${n.label}”, the least sure choice`,value:Math.exp(t[n.at]),share:!0},{key:`whole`,label:`Probability of the whole translation`,value:Math.exp(M(t)),share:!0}],answer:n.label,holds:!0}},done:({view:e,entry:t})=>e.target!==``&&e.target!==t.target},at=e=>M(S(e).map(({path:t})=>e.shape(`${t}.probabilities`)[0])),ot={id:`inside-the-box`,task:`translate`,room:`glass`,prediction:{kind:`type`},async reveal({app:e,trace:t}){let[n,r]=t.stacks,i=at(t);return{facts:[{key:`reading`,label:`Layers of the encoder, with one attention each`,value:n.layers},{key:`writing`,label:`Layers of the decoder, with two attentions each`,value:r.layers},{key:`per-attention`,label:`Heads of an attention`,value:t.shape(`${S(t)[0].path}.probabilities`)[0]},{key:`heads`,label:`Heads of the whole model`,value:i},{key:`parameters`,label:`Learned numbers (parameters)`,value:e.model.parameters}],answer:i,holds:!0}},done:({view:e})=>e.step>=0},st={id:`tokens`,task:`translate`,room:`glass`,show:e=>({open:F(e,`embedding`)}),prediction:{kind:`type`},async reveal({view:e,trace:t}){let{source_vocab_size:n,vocab_size:r}=t.config,i=t.words(`source`);return{facts:[{key:`words`,label:`Words between spaces`,value:e.text.trim().split(/\s+/).length},{key:`tokens`,label:`Tokens`,value:i.length},{key:`ids`,label:`Their ids`,value:t.manifest.ids.source.join(` `)},{key:`vocabulary`,label:`Entries of the vocabulary`,value:n??r}],answer:i.length,holds:!0}},done:({view:e,trace:t,entry:n})=>e.text!==n.text&&t.words(`source`).some((e,t)=>t>0&&z(e)&&!/^[▁Ġ]/.test(e))},ct={id:`embeddings`,task:`translate`,room:`glass`,show:e=>({open:F(e,`embedding`),...H(e)}),mark:e=>`The marked word is “${e.marked}”.`,prediction:{kind:`type`},async reveal(e){let{trace:t,focus:n}=e,r=F(t,`embedding`),i=t.has(`${r}.scaled`)&&t.config.scale_embedding,a=t.has(`${r}.positions`),[o,s,c]=await e.tensors(`${r}.tokens`,`${r}.${i?`scaled`:`tokens`}`,`${r}.${a?`positions`:`tokens`}`),l=lt(e,o.shape[0],e=>w(o,e));return{facts:[{key:`width`,label:`Numbers in one row (d_model)`,value:o.shape[1]},{key:`number`,label:`First number of the row of “${e.marked}”`,value:w(o,n)[0],node:{name:`${r}.tokens`,at:[n,0]}},{key:`length`,label:`Length of the row of “${e.marked}”`,value:j(w(o,n))},...i?[{key:`scaled`,label:`Its length times √d_model`,value:j(w(s,n))}]:[],...a?[{key:`position`,label:`Length of its position`,value:j(w(c,n))}]:[],...l],answer:o.shape[1],holds:!0}},depends:e=>String(e.focus),done:U(/\.embedding\./)};function lt(e,t,n){let r=e.trace.manifest.ids.source,i={pair:``,cosine:-1/0};for(let a=0;a<t;a++)for(let t=0;t<a;t++){if(r[a]===r[t])continue;let o=be(n(a),n(t));o>i.cosine&&(i={pair:`“${e.word(t)}” and “${e.word(a)}”`,cosine:o})}return i.pair?[{key:`nearest`,label:`Largest cosine of two rows: ${i.pair}`,value:i.cosine}]:[]}function ut(e,t,n,r,i){let a=[...new Set([n,...r])].slice(0,4).sort((e,t)=>i(e)-i(t));return{text:e,stop:t,options:a,answer:a.indexOf(n)}}var $=(e,t,n,r)=>ut(e,t,String(n),r.filter(e=>e>0).map(String),Number),dt=(e,t,n,r)=>ut(e,t,n,r,e=>e.codePointAt(0));async function ft(e){let{trace:t,focus:n}=e,{d_model:r}=t.config,[i,a]=[t.words(`source`),t.words(`target`)],o=F(t,`layers.0.self_attention`),[s]=await e.tensors(`${o}.probabilities`),[c]=s.shape,l=t.shape(`${o}.q`)[2],u=at(t),d=i.map((e,t)=>C(s,0,n,t)),f=N(d),p=e=>`${D(i[e])} (token ${e+1})`,m=[...i.keys()].filter(e=>e!==f).sort((e,t)=>d[t]-d[e]).slice(0,3),h=Y(t),g=V(a.slice(1)).map(({label:e})=>e).filter(e=>e!==h.label),_=Math.max(Math.floor(g.length/3),1);return[$(`Into how many tokens is your sentence cut, with the end?`,`tokens`,i.length,[i.length-1,i.length+3,a.length*2]),$(`How many heads does the whole model have?`,`inside-the-box`,u,[c,u*2,c*t.stacks[0].layers]),$(`How many numbers has a query of one head?`,`query-key-and-value`,l,[r,c,l*2]),$(`How many scores does one head of the encoder compute here?`,`matrices`,i.length**2,[i.length,i.length*a.length+1,i.length*2]),dt(`At which token does head 1 of the first encoder layer look most from “${e.marked}”?`,`from-scores-to-weights`,p(f),m.map(p)),dt(`Of which word of its translation was the model least sure?`,`result`,h.label,[0,_,2*_].map(e=>g[e]).filter(Boolean)),{text:`Cross-attention: how large is the matrix of weights of one head (rows × columns)?`,stop:`cross-attention`,...pt(a.length,i.length)}]}function pt(e,t){let n=[...new Set([`${t} × ${e}`,`${e} × ${t}`,`${t} × ${t}`,`${e} × ${e}`])];return{options:n,answer:n.indexOf(`${e} × ${t}`)}}var mt=O({continuing:()=>_t,quiz:()=>yt,reading:()=>vt});async function ht(e){let t=await e.tensor(F(e,`layers.0.self_attention.probabilities`)),[n,r]=t.shape,i=0;for(let e=0;e<n;e++)for(let n=0;n<r;n++)for(let a=n+1;a<r;a++)i=Math.max(i,C(t,e,n,a));return i}async function gt(e,t){let n=await e.row(`probabilities`,t),r=N(n),[i]=await e.pieces([r]);return{piece:i.replace(/^[▁Ġ]/,``),probability:n[r]}}var _t={id:`continuing-a-text`,task:`write`,room:`glass`,show:e=>({open:I(e,`layers.0.self_attention`)}),prediction:{kind:`drag`,most:100},async reveal({trace:e}){let t=e.words(`target`).length,{piece:n,probability:r}=await gt(e,t-1);return{facts:[{key:`layers`,label:`Layers of the one stack`,value:e.top.layers},{key:`next`,label:`Likeliest continuation`,value:n},{key:`probability`,label:`Its probability`,value:r,share:!0},{key:`future`,label:`Largest weight of a later token`,value:await ht(e)}],answer:r*100,holds:!0}},done:({view:e,entry:t})=>e.text.trim().startsWith(t.text.trim())&&e.text.trim().length>t.text.trim().length},vt={id:`reading-a-text`,task:`read`,room:`glass`,show:e=>({open:F(e,`layers.0.self_attention`),...H(e)}),mark:e=>`The class token is “${e.word(0)}”. The marked word is “${e.marked}”.`,prediction:{kind:`choose`},async reveal(e){let t=await e.traced(null),n=await Qe(e),r=t.has(`probabilities`)?await gt(t,e.focus):null;return{facts:[...n?[{key:`without`,label:`Change of the class token's vector without positions`,value:n.without[0]},{key:`with`,label:`The same with positions`,value:n.with[0]}]:[],{key:`future`,label:`Largest weight of a later token`,value:await ht(t)},...r?[{key:`guess`,label:`Guess for the place of “${e.marked}”: “${r.piece}”`,value:r.probability,share:!0}]:[]],answer:0,holds:n!==null&&n.without[0]<1e-4&&n.with[0]>n.without[0]}},depends:e=>String(e.focus),done:({view:e,entry:t})=>et(e)&&$e(e.text,t.text),action:{label:`Reverse the words`,change:({view:e})=>({text:Q(e.text)})}},yt={id:`quiz`,task:`translate`,room:`glass`,show:H,prediction:{kind:`type`},async reveal(e){let t=await ft(e);return{facts:[],answer:t.length,holds:!0,questions:t}},done:()=>!1},bt=[[`The animal didn't cross the street because it was too tired.`,`Das Tier überquerte die Straße nicht, weil es zu müde war.`],[`The animal didn't cross the street because it was too wide.`,`Das Tier überquerte die Straße nicht, weil sie zu breit war.`]],xt=async(t,n,r)=>(await t.translate(n,r,h(c(e)))).text,St=e=>e.length>70?`${e.slice(0,69)}…`:e||`(nothing)`,Ct={id:`training`,task:`translate`,room:`glass`,prediction:{kind:`choose`},async reveal({app:e}){let{connection:t,api:n}=e,r=await t.read(t.send(`/v1/training`),e=>e.json()),i=await Promise.all(r.states.map(async({step:e,model:t})=>{let r=await Promise.all(bt.map(([e])=>xt(n,t,e)));return{step:e,text:r[0],right:r.every((e,t)=>e===bt[t][1])}})),a=i[i.findIndex((e,t)=>i.slice(t).every(({right:e})=>e))]?.step??-1;return{facts:[...i.map(({step:e,text:t,right:n})=>({key:`state-${e}`,label:`After ${e} steps${n?`, both sentences right`:``}`,value:St(t)})),...a<0?[]:[{key:`step`,label:`Both sentences of the riddle are right from step`,value:a}]],answer:a<80?0:1,holds:a>=0}},done:()=>!1},wt=[...Object.values(nt),...Object.values(Ee),...Object.values(ze),...Object.values(mt),Ct].filter(e=>typeof e==`object`),Tt=ye.flatMap(e=>{let t=wt.find(({id:t})=>t===e.id);return t?[{...t,text:e}]:[]}),Et=e=>e.replace(/\*\*|[*`\t]/g,``);function Dt(){return[`#separator:tab`,`#html:false`,`#tags column:3`,...Tt.flatMap(({text:e})=>e.cards.map(({question:t,answer:n})=>`${Et(t)}\t${Et(n)}\t${e.id}`)),``].join(`
`)}function Ot(){let e=URL.createObjectURL(new Blob([Dt()],{type:`text/tab-separated-values`})),t=document.createElement(`a`);t.href=e,t.download=`transformer-cards.tsv`,t.click(),URL.revokeObjectURL(e)}var kt=n(`<strong> </strong>`),At=n(`<em> </em>`),jt=n(`<code> </code>`),Mt=n(`W<sup class="svelte-kvwh6x"> </sup>`,1),Nt=n(`d<sub class="svelte-kvwh6x"> </sub>`,1);function Pt(e,t){re(t,!0);let n=E(()=>t.text.split(/(\*\*[^*]+\*\*|\*[^*]+\*|`[^`]+`|W\^[A-Z]|d_(?:k|model))/).filter(Boolean));var s=d(),c=b(s);o(c,17,()=>a(n),ce,(e,t)=>{var n=d(),o=b(n),s=e=>{var n=kt(),i=p(n,!0);T(e=>r(i,e),[()=>a(t).slice(2,-2)]),l(e,n)},c=E(()=>a(t).startsWith(`**`)),f=e=>{var n=At(),i=p(n,!0);T(e=>r(i,e),[()=>a(t).slice(1,-1)]),l(e,n)},m=E(()=>a(t).startsWith(`*`)),h=e=>{var n=jt(),i=p(n,!0);T(e=>r(i,e),[()=>a(t).slice(1,-1)]),l(e,n)},g=E(()=>a(t).startsWith("`")),_=e=>{var n=Mt(),i=ne(b(n)),o=p(i,!0);T(e=>r(o,e),[()=>a(t).slice(2)]),l(e,n)},v=E(()=>a(t).startsWith(`W^`)),y=e=>{var n=Nt(),i=ne(b(n)),o=p(i,!0);T(e=>r(o,e),[()=>a(t).slice(2)]),l(e,n)},ee=E(()=>a(t).startsWith(`d_`)),x=e=>{var n=i();T(()=>r(n,a(t))),l(e,n)};u(o,e=>{a(c)?e(s):a(m)?e(f,1):a(g)?e(h,2):a(v)?e(_,3):a(ee)?e(y,4):e(x,-1)}),l(e,n)}),l(e,s),_()}var Ft=`sightline-tour`,It=`coref`,Lt=`The animal didn't cross the street because it was too tired.`,Rt={open:``,heads:``,word:``,key:-1,why:``,step:-1,beams:e.beams,prefix:``,node:-1,changes:``,cells:``};function zt(e){let t={guesses:{},done:{},last:``};try{return{...t,...JSON.parse(e?.getItem(Ft)??`{}`)}}catch{return t}}var Bt=class{app;progress;answers;#e=x(``);get driving(){return a(this.#e)}set driving(e){g(this.#e,e,!0)}#t=x(0);get opened(){return a(this.#t)}set opened(e){g(this.#t,e,!0)}#n=x({stop:``,text:``,target:null,word:``});get entry(){return a(this.#n)}set entry(e){g(this.#n,e)}glass;constructor(e){this.app=e;let t=ie(zt(e.storage));this.progress=t,this.glass=e.use(ae),this.answers=this.glass.numbers();let{room:n,open:r,word:i,why:a}=e.view;n!==`translate`||r||i||a||(this.driving=e.view.stop)}get stop(){return Tt.find(({id:e})=>e===this.app.view.stop)??null}get stops(){return Tt.filter(e=>m(this.app.models,{tasks:[e.task]}).length)}suits({task:e}){return this.app.model!==void 0&&se(this.app.model,{tasks:[e]})}get live(){let{base:e,isStored:t,waiting:n}=this.glass,{model:r}=this.app;return!e||!r||t||n||e.manifest.model!==r.name?null:new Ce(this.app,e,this.entry)}get last(){return this.stops.find(({id:e})=>e===this.progress.last)??null}get started(){return this.progress.last!==``}guess({id:e}){return this.progress.guesses[e]}isDone({id:e}){return this.progress.done[e]??!1}isComplete(e){return this.isDone(e)&&this.guess(e)!==void 0}get completed(){return this.stops.filter(e=>this.isComplete(e)).length}get reveal(){let{value:e}=this.answers;return e&&e.stop===this.stop?.id&&e.of===this.glass.base?e.found:null}get problem(){return this.answers.problem||this.glass.problem}open(e){let t={...Rt,stop:e.id,room:e.room};this.app.states.some(({name:e})=>e===this.app.view.model)&&(t.model=``),this.suits(e)||Object.assign(t,oe,{model:m(this.app.models,{tasks:[e.task]})[0].name}),this.driving=e.id,this.app.go(t)}leave(){this.app.go({stop:``})}get bundled(){let{models:e,model:t,view:n}=this.app,r=e.some(e=>e.name===`coref`)?It:t?.name;return r===t?.name&&n.text===`The animal didn't cross the street because it was too tired.`?null:{...oe,model:r,text:Lt}}useBundled(){this.bundled&&this.stop&&(this.driving=this.stop.id,this.app.go({...Rt,...this.bundled,room:this.stop.room}))}follow(){let{stop:e,live:t}=this;if(e&&(this.progress.last!==e.id&&this.save({last:e.id}),t&&this.suits(e))){if(this.driving===e.id||this.entry.stop!==e.id){this.driving&&(this.app.go({room:e.room,...e.show?.(t.trace)},`replace`),this.opened++),this.driving=``;let{text:n,word:r}=this.app.view;this.entry={stop:e.id,text:n,target:P(t.trace).target,word:r}}else!this.isDone(e)&&e.done(t)&&this.save({done:{...this.progress.done,[e.id]:!0}})}}ask(){let{stop:e,live:t}=this;if(!e||!t||this.driving||this.guess(e)===void 0||!this.suits(e))return;let n=t.trace,{beams:r,length_penalty:i}=this.app.view;this.answers.ask([e.id,n,e.depends?.(t)??``,r,i],async()=>({stop:e.id,of:n,found:await e.reveal(t)}))}predict(e,t){this.save({guesses:{...this.progress.guesses,[e.id]:t}})}retract({id:e}){let{[e]:t,...n}=this.progress.guesses;this.save({guesses:n})}complete({id:e}){this.save({done:{...this.progress.done,[e]:!0}})}forget(){this.save({guesses:{},done:{},last:``})}save(e){Object.assign(this.progress,e),this.app.storage?.setItem(Ft,JSON.stringify(this.progress))}},Vt=()=>s().use(Bt);export{xt as a,bt as i,Pt as n,ve as o,Ot as r,Vt as t};