// Attention weights, read back from what the page carries: bytes that count steps of a row's largest weight.

class Weights {
  constructor(packed) {
    this.packed = packed;
    this.maxima = new Float32Array(bytesOf(packed.maxima).buffer);
    this.layers = new Map();
  }

  /** Steps of all heads of a layer [heads, queries, keys]; unpacked when it is first asked for. */
  steps(layer) {
    if (!this.layers.has(layer)) this.layers.set(layer, inflated(bytesOf(this.packed.blocks[layer])));
    return this.layers.get(layer);
  }

  /** Weights [queries, keys] of a head, or of the mean over heads. */
  async of(layer, head) {
    const { heads, queries, keys, mean_only } = this.packed;
    const steps = await this.steps(layer);
    const chosen = head === MEAN || mean_only ? [...Array(heads).keys()] : [head];
    const weights = new Float32Array(queries * keys);
    for (const each of chosen) {
      for (let query = 0; query < queries; query++) {
        const step = this.step(layer, each, query) / chosen.length;
        const first = (each * queries + query) * keys;
        for (let key = 0; key < keys; key++) weights[query * keys + key] += steps[first + key] * step;
      }
    }
    return weights;
  }

  /** How far apart two weights of a row are that the page can tell from each other. */
  step(layer, head, query) {
    const { heads, queries, levels } = this.packed;
    return this.maxima[(layer * heads + head) * queries + query] / levels;
  }
}

function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (sign) => sign.charCodeAt(0));
}

async function inflated(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
