// Questions to the server. A refusal becomes an Error whose message is the server's sentence.
export async function ask(path, { body, type = "application/json", accept = "application/json", signal } = {}) {
  const options = { headers: { Accept: accept }, signal };
  if (body !== undefined) {
    options.method = "POST";
    options.headers["Content-Type"] = type;
    options.body = type === "application/json" ? JSON.stringify(body) : body;
  }
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Is it still running?");
  }
  if (answer.ok) return answer;
  let said;
  try {
    said = (await answer.json()).error;
  } catch {
    said = `the server answers with status ${answer.status}`;
  }
  throw new Error(sentence(said));
}

export function sentence(text) {
  const whole = text.endsWith(".") || text.endsWith("?") ? text : `${text}.`;
  return whole.charAt(0).toUpperCase() + whole.slice(1);
}
